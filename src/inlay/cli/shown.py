"""What the commands print."""

import json
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from inlay import branches
from inlay.evaluation import Scores
from inlay.knowledge import StageRecord
from inlay.learner import Learner
from inlay.rehearsal import Rehearsal

__all__ = ["console", "errors", "show_knowledge", "show_rehearsal", "show_scores", "show_stage"]

# Names of classes and folders are shown as they are, square brackets and colons included.
console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_stage(learner: Learner, record: StageRecord) -> None:
    """Print what a stage has learned."""
    console.print(
        f"Stage {record.index}: {len(record.class_names)} classes from {record.images:,} images in "
        f"{record.seconds:.0f} s; {len(learner.classes)} classes in all."
    )
    if record.merge is not None:
        console.print(
            f"Merged: outputs changed by at most {record.merge['max_abs_diff']:.1e}; "
            f"{record.merge['parameters_after']:,} parameters before and after."
        )


def show_rehearsal(rehearsal: Rehearsal) -> None:
    """Print what a stage would need."""
    console.print(rehearsal.table(), soft_wrap=False)
    console.print("Nothing was written; repeat the command without --dry-run to learn.")


def show_scores(scores: Scores, as_json: bool) -> None:
    """Print the scores of a run, one per line or as JSON."""
    if as_json:
        print(json.dumps(scores.to_json(), indent=1))
        return
    for name, value in scores.to_json().items():
        if value is not None:
            console.print(f"{name:<11}{_as_text(value)}")


def show_knowledge(learner: Learner) -> None:
    """Print the classes of a run, its network, and what it stores."""
    knowledge = learner.knowledge
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "class", "stage", "kind", "images"):
        justify: JustifyMethod = "right" if heading in ("id", "stage", "images") else "left"
        table.add_column(heading, justify=justify, overflow="fold")
    for entry in learner.classes:
        table.add_row(str(entry.id), entry.name, str(entry.stage), entry.kind, str(entry.size))
    console.print(table, soft_wrap=False)
    height, width = knowledge.form.size
    parameters = branches.folded_parameters(knowledge.network, knowledge.form.example().to(knowledge.device))
    console.print(
        f"Network {knowledge.backbone or 'of your own'}: {parameters:,} parameters without the head; images "
        f"{width}×{height}, {knowledge.form.channels} channel(s); method {knowledge.settings.method}, seed "
        f"{knowledge.seed}."
    )
    console.print(
        f"Stored per class: {knowledge.statistics.bytes_per_class():,} bytes of {knowledge.statistics.kind} "
        f"statistics; no images."
    )


def _as_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_as_text(part)}" for key, part in value.items() if part is not None)
    return f"{value:.4f}" if isinstance(value, float) else str(value)
