"""The presets: complete settings under a name."""

import dataclasses

from inlay.errors import InlayError
from inlay.settings import parts
from inlay.settings.whole import Settings

__all__ = ["preset", "preset_names"]


def _paper() -> Settings:
    """The method as printed, under the readings that make sense of its misprints."""
    training = parts.TrainingSettings(
        epochs=200, batch=64, nesterov=False, weight_decay=1e-4, schedule="step", decay_at=(0.85,)
    )
    base_training = dataclasses.replace(training, batch=128, decay_at=(0.15, 0.3, 0.45, 0.6, 0.75, 0.9))
    return Settings(
        method="adm",
        base=parts.BaseSettings(training=base_training, contrastive=0.0),
        training=training,
        first_view="weak",
        second_view="weak",
        contrastive=parts.ContrastiveSettings(weight=1.0),
        distillation=parts.DistillationSettings(weight=10.0),
        self_training=parts.SelfTrainingSettings(weight=0.01),
        triplet=parts.TripletSettings(weight=1.0),
        regularization=parts.RegularizationSettings(weight=1.0),
        replay=parts.ReplaySettings(weight=1.0, statistics="shared", scale=1.0),
        classifier=parts.ClassifierSettings(detach=True, refit=False, drift=False),
    )


def _inlay() -> Settings:
    """What works best by our own measurements."""
    return Settings(
        training=parts.TrainingSettings(epochs=16, batch=256),
        distillation=parts.DistillationSettings(weight=0.1),
        assignment=parts.AssignmentSettings(weight=1.0),
    )


_PRESETS = {"inlay": _inlay, "paper": _paper}


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
