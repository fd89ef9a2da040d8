"""The presets: complete settings under a name."""

import dataclasses
from collections.abc import Callable

from inlay.errors import InlayError
from inlay.settings import baseline_parts, parts
from inlay.settings.whole import Settings

__all__ = ["preset", "preset_names"]

# The layers that FRoST's code trains.
_LATER_LAYERS = ("layer[234]*",)


def _inlay() -> Settings:
    """What works best by our own measurements."""
    return Settings(
        training=parts.TrainingSettings(epochs=16, batch=256, learning_rate=0.03),
        distillation=parts.DistillationSettings(weight=0.1, by_classes=True),
        assignment=parts.AssignmentSettings(weight=1.0, metric="known", partner_share=0.5),
        classifier=parts.ClassifierSettings(decision="densities"),
    )


def _kmeans() -> Settings:
    """K-means on the frozen features and a refitted head: what costs nothing."""
    return Settings(method="kmeans", branch=parts.BranchSettings(gate="frozen"))


def _plain(method: str) -> Settings:
    """FRoST's optimiser, schedule and views, with the base stage of its protocol, and no loss yet."""
    training = parts.TrainingSettings(
        epochs=200, batch=64, nesterov=False, weight_decay=1e-4, schedule="step", decay_at=(0.85,)
    )
    base_training = dataclasses.replace(training, batch=128, decay_at=(0.15, 0.3, 0.45, 0.6, 0.75, 0.9))
    return Settings(
        method=method,
        base=parts.BaseSettings(training=base_training, contrastive=0.0),
        training=training,
        second_view="weak",
        replay=parts.ReplaySettings(statistics="shared", scale=1.0),
        classifier=parts.ClassifierSettings(refit=False, drift=False),
    )


def _paper() -> Settings:
    """ADM as printed, under the readings that make sense of its misprints."""
    plain = _plain("adm")
    return dataclasses.replace(
        plain,
        contrastive=parts.ContrastiveSettings(weight=1.0),
        distillation=parts.DistillationSettings(weight=10.0),
        self_training=parts.SelfTrainingSettings(weight=1.0, divide_by_classes=True),
        triplet=parts.TripletSettings(weight=1.0, divide_by="none", other_view="second"),
        regularization=parts.RegularizationSettings(weight=1.0),
        replay=dataclasses.replace(plain.replay, weight=1.0),
        classifier=dataclasses.replace(plain.classifier, detach=True),
    )


def _autonovel() -> Settings:
    """AutoNovel without old images."""
    return dataclasses.replace(
        _plain("autonovel"),
        branch=parts.BranchSettings(gate="full", include=_LATER_LAYERS),
        pairs=baseline_parts.PairSettings(weight=1.0),
        consistency=baseline_parts.ConsistencySettings(weight=5.0),
    )


def _ncl() -> Settings:
    """NCL without old images."""
    return dataclasses.replace(
        _autonovel(),
        method="ncl",
        pairs=baseline_parts.PairSettings(weight=1.0, rule="cosine"),
        neighbourhood=baseline_parts.NeighbourhoodSettings(weight=1.0),
    )


def _dtc() -> Settings:
    """DTC in its variant PI, which needs no old images."""
    plain = _plain("dtc")
    return dataclasses.replace(
        plain,
        training=dataclasses.replace(plain.training, learning_rate=0.05, decay_at=()),
        branch=parts.BranchSettings(gate="full"),
        clustering=baseline_parts.ClusteringSettings(weight=1.0),
        consistency=baseline_parts.ConsistencySettings(weight=10.0, ramp=0.05),
    )


def _restune() -> Settings:
    """ResTune, which needs no old images."""
    return dataclasses.replace(
        _dtc(),
        method="restune",
        branch=parts.BranchSettings(gate="twin"),
        consistency=baseline_parts.ConsistencySettings(weight=1.0, ramp=0.0),
        ranking=baseline_parts.RankingSettings(weight=1.0),
        softened=baseline_parts.SoftenedSettings(weight=1.0),
    )


def _frost() -> Settings:
    """FRoST as in its code."""
    start = _autonovel()
    return dataclasses.replace(
        start,
        method="frost",
        distillation=parts.DistillationSettings(weight=10.0),
        self_training=parts.SelfTrainingSettings(weight=0.01),
        replay=dataclasses.replace(start.replay, weight=1.0),
    )


def _frost_with(gate: str) -> Settings:
    """FRoST's losses on gated branches beside the frozen network."""
    return dataclasses.replace(_frost(), branch=parts.BranchSettings(gate=gate))


_PRESETS: dict[str, Callable[[], Settings]] = {
    "inlay": _inlay,
    "paper": _paper,
    "autonovel": _autonovel,
    "restune": _restune,
    "ncl": _ncl,
    "dtc": _dtc,
    "frost": _frost,
    "frost+aff": lambda: _frost_with("aff"),
    "frost+amm": lambda: _frost_with("amm"),
    "kmeans": _kmeans,
}


def preset_names() -> list[str]:
    """Return the names of the presets, the default first."""
    return list(_PRESETS)


def preset(name: str) -> Settings:
    """Return the settings of a preset.

    Raises:
        InlayError: If there is no preset of that name.
    """
    if name not in _PRESETS:
        raise InlayError(f"There is no preset {name!r}; choose one of: {', '.join(_PRESETS)}.")
    return _PRESETS[name]()
