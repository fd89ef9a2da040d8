"""Decisions about the classes of a stage, kept in the run folder with what they made of the model.

The outcome is kept beside the decisions, because a split cannot be repeated without the images of its class and a run
folder holds none. So a run opens as it was decided, at once and anywhere.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from inlay import decisions
from inlay.decisions import Decision
from inlay.densities import with_densities
from inlay.discovery.repair import padded
from inlay.discovery.statistics import ClassStatistics
from inlay.engine.checkpoint import JsonObject
from inlay.knowledge import Knowledge
from inlay.registry import ClassRegistry
from inlay.run_folder import RunFolder
from inlay.sealed import making_sense_of

__all__ = ["copy_decisions", "decided", "decisions_state", "keep_decisions", "kept_decisions"]

_EXTRA = "decisions"
_ROWS = "rows"


@making_sense_of("decision")
def decided(run: RunFolder, knowledge: Knowledge) -> Knowledge:
    """Return what is known after the decisions that were kept for a stage.

    Args:
        run: The run.
        knowledge: What the stage itself left behind.
    """
    entry = _entry_of(run, knowledge)
    return knowledge if entry is None else _with_outcome(knowledge, entry["outcome"])


@making_sense_of("decision")
def kept_decisions(run: RunFolder, knowledge: Knowledge) -> list[Decision]:
    """Return the decisions that were kept for a stage, the oldest first."""
    entry = _entry_of(run, knowledge)
    return [] if entry is None else [decisions.from_json(item) for item in entry["decisions"]]


def keep_decisions(run: RunFolder, knowledge: Knowledge, taken: Sequence[Decision], outcome: Knowledge) -> None:
    """Write the decisions about a stage and their outcome, in one step as a reader sees it.

    Args:
        run: The run.
        knowledge: What the stage itself left behind.
        taken: All decisions since, the oldest first.
        outcome: What `inlay.decisions.replay` made of both.

    Raises:
        InlayError: If the folder cannot be written or another process is writing.
    """
    stage = knowledge.record.index
    entry = {
        "stage": stage,
        "of": _digest_of(run, stage),
        "decisions": [decisions.to_json(decision) for decision in taken],
        "outcome": _outcome(knowledge, outcome),
    }
    with run.lock():
        others = [other for other in run.read_extra(_EXTRA) or [] if other["stage"] != stage]
        run.write_extra(_EXTRA, sorted([*others, entry], key=lambda item: int(item["stage"])))


def copy_decisions(source: RunFolder, target: RunFolder) -> None:
    """Give a copy of a run the decisions that were kept for its stages.

    Raises:
        InlayError: If the folder cannot be written or another process is writing.
    """
    kept = source.read_extra(_EXTRA)
    if kept is not None:
        target.write_extra(_EXTRA, kept)


def decisions_state(run: RunFolder) -> str:
    """Return a text that changes whenever a decision is taken or undone."""
    kept = json.dumps(run.read_extra(_EXTRA), sort_keys=True)
    return hashlib.blake2b(kept.encode(), digest_size=16).hexdigest()


def _entry_of(run: RunFolder, knowledge: Knowledge) -> JsonObject | None:
    stage = knowledge.record.index
    for entry in run.read_extra(_EXTRA) or []:
        # A stage that was rolled back and learned anew has other classes under the same number.
        if entry["stage"] == stage and entry["of"] == _digest_of(run, stage):
            found: JsonObject = entry
            return found
    return None


def _digest_of(run: RunFolder, stage: int) -> str:
    facts = json.dumps(run.read_facts(stage), sort_keys=True)
    return hashlib.blake2b(facts.encode(), digest_size=16).hexdigest()


def _outcome(knowledge: Knowledge, outcome: Knowledge) -> JsonObject:
    """Describe what differs from the knowledge before: classes, head, and rows of the statistics."""
    tensors: dict[str, Tensor] = {}
    if outcome.head is not knowledge.head:
        assert isinstance(outcome.head, nn.Linear)
        tensors |= {f"head.{name}": tensor for name, tensor in outcome.head.state_dict().items()}
    if outcome.statistics is not knowledge.statistics:
        tensors |= _changed_rows(padded(knowledge.statistics, len(outcome.statistics)), outcome.statistics)
    bare = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    return {
        "classes": outcome.registry.to_json(),
        "tensors": base64.b64encode(zlib.compress(save(bare))).decode("ascii"),
    }


def _with_outcome(knowledge: Knowledge, outcome: Any) -> Knowledge:
    tensors = load(zlib.decompress(base64.b64decode(outcome["tensors"])))
    tensors = {name: tensor.to(knowledge.device) for name, tensor in tensors.items()}
    registry = ClassRegistry.from_json(outcome["classes"])
    head, statistics = knowledge.head, knowledge.statistics
    if "head.weight" in tensors:
        weight, bias = tensors["head.weight"], tensors["head.bias"]
        head = nn.Linear(weight.shape[1], len(weight), device="meta")
        head.load_state_dict({"weight": weight, "bias": bias}, assign=True)
        head.requires_grad_(False).eval()
    if _ROWS in tensors:
        statistics = _with_rows(padded(statistics, len(registry)), tensors)
    changed = replace(knowledge, registry=registry, head=head, statistics=statistics)
    return with_densities(changed) if _ROWS in tensors else changed


def _changed_rows(before: ClassStatistics, after: ClassStatistics) -> dict[str, Tensor]:
    old, new = before.tensors(), after.tensors()
    differs = torch.zeros(len(after), dtype=torch.bool, device=after.mean.device)
    for name in after.by_class:
        differs |= (old[name] != new[name]).flatten(1).any(dim=1) if new[name].ndim > 1 else old[name] != new[name]
    rows = differs.nonzero().flatten()
    kept = {f"statistics.{name}": new[name][rows] if name in after.by_class else new[name] for name in new}
    return {_ROWS: rows, **kept}


def _with_rows(before: ClassStatistics, tensors: dict[str, Tensor]) -> ClassStatistics:
    now = {name: tensor.clone() for name, tensor in before.tensors().items()}
    for name in now:
        kept = tensors[f"statistics.{name}"]
        if name in before.by_class:
            now[name][tensors[_ROWS]] = kept
        else:
            now[name] = kept
    return ClassStatistics.from_tensors(now)
