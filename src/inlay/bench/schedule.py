"""How stages of a table are trained, the same for every system: the published schedules, whole or compressed, or ours.

The decay of a discovery stage stays at its published fraction. Those of the base stage do not: published at
every 30th of 200 epochs, at the same fractions of 60 epochs they would leave nine epochs at the first learning rate.
"""

from collections.abc import Mapping
from typing import Any

from inlay.bench.datasets import Benchmark

__all__ = ["BASE_PRESETS", "base_changes", "published_stage_length", "stage_length"]

BASE_PRESETS: Mapping[str, str] = {"reference": "paper", "ours": "inlay"}
"""Preset whose base stage a recipe takes."""

_BATCH = 128
_REFERENCE_BASE_DECAYS = (0.7, 0.9)
_REFERENCE_BASE_EPOCHS: Mapping[str, int] = {"cifar10": 60, "cifar100": 60, "tinyimagenet": 30}
# Large batches hold more negatives for the contrastive term, and benchmarks have the images to fill them.
_OUR_BASE: Mapping[str, Any] = {"base.training.batch": 512, "base.training.learning_rate": 0.2}
# Chosen on splits that share no novel class with the tables; Tiny-ImageNet takes that of CIFAR-100. Many base classes
# ask for many features by themselves; with few of them, the contrastive term has to keep what they do not ask for.
_OUR_BASES: Mapping[str, Mapping[str, Any]] = {
    "cifar10": {"base.view": "weak-policy", "base.training.epochs": 120},
    "cifar100": {
        "base.view": "weak-policy",
        "base.contrastive": 0.0,
        "base.rotation": 1.0,
        "base.training.epochs": 120,
    },
    "tinyimagenet": {
        "base.view": "weak-crop-policy",
        "base.contrastive": 0.0,
        "base.rotation": 1.0,
        "base.training.epochs": 60,
    },
}
_STAGE_EPOCHS: Mapping[str, int] = {"cifar10": 30, "cifar100": 60, "tinyimagenet": 30}
_PUBLISHED_STAGE_EPOCHS = 200


def base_changes(recipe: str, dataset: str) -> dict[str, Any]:
    """Return how a base stage is trained as changes of settings: the published schedule compressed, or our own."""
    if recipe != "reference":
        return {**_OUR_BASE, **_OUR_BASES[dataset]}
    return {
        "base.training.epochs": _REFERENCE_BASE_EPOCHS[dataset],
        "base.training.batch": _BATCH,
        "base.training.decay_at": _REFERENCE_BASE_DECAYS,
    }


def stage_length(dataset: str) -> dict[str, int]:
    """Return the compressed length of a discovery stage, the same for all systems, as changes of settings."""
    return {"training.epochs": _STAGE_EPOCHS[dataset], "training.batch": _BATCH}


def published_stage_length(data: Benchmark, steps: int) -> dict[str, int]:
    """Return the published length of a discovery stage, the same for all systems, as changes of settings.

    Where FRoST's code draws a batch from old and novel images together, it drops the old ones before the step. A step
    then has as many novel images as their share, and an epoch as many steps as a pass over all of them takes.

    Args:
        data: The data set.
        steps: Number of discovery stages.

    Raises:
        InlayError: If the data set is not cut into so many stages.
    """
    base, novel, *_ = data.cut(steps)
    batch = round(_BATCH * novel / (base + novel)) if data.mixed_batches else _BATCH
    return {"training.epochs": _PUBLISHED_STAGE_EPOCHS, "training.batch": batch}
