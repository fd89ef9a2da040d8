"""From images to knowledge: the base stage and the discovery stages, each a function.

Both are deterministic functions of their inputs: whatever a stopped stage had not kept is computed again, to
the same result.
"""

import copy
import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from inlay import backbones, branches
from inlay.data import ImageSet
from inlay.data.augment import normalisation_of
from inlay.discovery.statistics import class_statistics
from inlay.engine.inference import features_of
from inlay.engine.loop import Keeping, Loop
from inlay.engine.progress import Progress, QuietProgress
from inlay.engine.randomness import derive_seed, generator
from inlay.knowledge import InputForm, Knowledge, StageRecord
from inlay.methods import (
    BaseTask,
    StageOutcome,
    StageTask,
    adaptive_discovering_and_merging,
    method,
    train_base,
)
from inlay.registry import ClassRegistry
from inlay.settings import Settings, TrainingSettings

__all__ = ["Workshop", "learn_base", "learn_stage"]


@dataclass(frozen=True)
class Workshop:
    """Where and how stages are computed; nothing here changes their outcome.

    Attributes:
        device: Device of networks and images.
        progress: Receiver of news.
        checkpoint: Checkpoint file of the stage under way; None keeps nothing.
        checkpoint_seconds: Time between checkpoints.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Progress = field(default_factory=QuietProgress)
    checkpoint: Path | None = None
    checkpoint_seconds: float = 30.0

    def loop_maker(
        self,
        name: str,
        settings: TrainingSettings,
        images: int,
        seed: int,
        fingerprint: str,
        settings_name: str = "training",
    ) -> Callable[[Mapping[str, nn.Module]], Loop]:
        """Return a function that makes the training loop for given modules."""
        keeping = Keeping(self.checkpoint, self.checkpoint_seconds, fingerprint)

        def make(modules: Mapping[str, nn.Module]) -> Loop:
            return Loop(name, modules, settings, images, seed, self.device, keeping, self.progress, settings_name)

        return make


def learn_base(
    images: ImageSet, backbone: str | nn.Module, settings: Settings, seed: int, workshop: Workshop
) -> Knowledge:
    """Learn labelled base classes and fold the network.

    Args:
        images: Labelled images of at least two classes.
        backbone: Name of a backbone, or a module from images to features [N, D], which is not changed.
        settings: All settings of the run.
        seed: Seed of the run.
        workshop: Where it is computed.

    Raises:
        InlayError: If the backbone does not fit, or training is stopped or diverges.
    """
    start = time.monotonic()
    assert images.labels is not None
    normalise = normalisation_of(images.images)
    form = InputForm(images.size, images.channels, normalise.mean, normalise.std)
    own = derive_seed(seed, "base")
    if isinstance(backbone, str):
        network = backbones.build(backbone, images.channels, generator(own, "backbone"))
    else:
        network = copy.deepcopy(backbone).cpu()
    feature_size = backbones.feature_size(network, form.example())
    network.to(workshop.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels, labels = images.images.to(workshop.device), images.labels.to(workshop.device)
    classes = len(images.class_names)
    task = BaseTask(network, feature_size, pixels, labels, classes, normalise, settings.base, own)
    identity = _fingerprint(images.fingerprint(), settings.to_json(), seed, _name(backbone))
    training = settings.base.training
    make_loop = workshop.loop_maker("the base stage", training, len(images), own, identity, "base.training")
    head = train_base(task, make_loop)
    folded = branches.fold(network, form.prepare(pixels[:2]))
    features = features_of(folded, pixels, form.prepare)
    statistics = class_statistics(features, labels, classes, settings.replay.statistics)
    registry = ClassRegistry()
    sizes = torch.bincount(labels, minlength=classes).tolist()
    registry.add(images.class_names, stage=0, kind="labelled", sizes=sizes)
    seconds = time.monotonic() - start
    record = StageRecord(0, "base", images.class_names, len(images), seconds)
    name = backbone if isinstance(backbone, str) else None
    return Knowledge(folded, head, statistics, registry, form, name, settings, seed, record)


def learn_stage(
    knowledge: Knowledge, images: ImageSet, classes: int, settings: Settings, workshop: Workshop
) -> Knowledge:
    """Discover new classes in unlabelled images and merge them into the network.

    Args:
        knowledge: What is known; it is not changed.
        images: Unlabelled images.
        classes: Number of new classes.
        settings: All settings of the stage.
        workshop: Where it is computed.

    Raises:
        InlayError: If training is stopped or diverges, or the merge is not exact.
    """
    start = time.monotonic()
    index = knowledge.record.index + 1
    own = derive_seed(knowledge.seed, "stage", index)
    task = StageTask(
        network=knowledge.network,
        head=knowledge.head,
        statistics=knowledge.statistics,
        images=images.images.to(workshop.device),
        classes=classes,
        normalise=knowledge.form.normalise,
        settings=settings,
        seed=own,
    )
    identity = _fingerprint(images.fingerprint(), settings.to_json(), knowledge.seed, index, classes)
    make_loop = workshop.loop_maker(f"stage {index}", settings.training, len(images), own, identity)
    outcome = adaptive_discovering_and_merging(task, method(settings.method), make_loop)
    registry = ClassRegistry.from_json(knowledge.registry.to_json())
    sizes = torch.bincount(outcome.assignments, minlength=classes).tolist()
    entries = registry.add(classes, stage=index, kind="discovered", sizes=sizes)
    record = StageRecord(
        index=index,
        kind="novel",
        class_names=tuple(entry.name for entry in entries),
        images=len(images),
        seconds=time.monotonic() - start,
        fingerprints=images.fingerprints(),
        clusters=tuple(outcome.assignments.tolist()),
        merge=_merge_facts(outcome),
    )
    return Knowledge(
        outcome.network,
        outcome.head,
        outcome.statistics,
        registry,
        knowledge.form,
        knowledge.backbone,
        settings,
        knowledge.seed,
        record,
    )


def _merge_facts(outcome: StageOutcome) -> dict[str, float | int] | None:
    report = outcome.merge
    if report is None or report.max_abs_diff is None:
        return None
    return {
        "max_abs_diff": report.max_abs_diff,
        "parameters_before": report.parameters_before,
        "parameters_hybrid": report.parameters_hybrid,
        "parameters_after": report.parameters_after,
    }


def _fingerprint(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()


def _name(backbone: str | nn.Module) -> str:
    return backbone if isinstance(backbone, str) else repr(backbone)
