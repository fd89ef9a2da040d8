"""Data split and settings of the demonstration."""

from inlay.data import Stages
from inlay.data.demo import demo_digits
from inlay.settings import Settings, preset

__all__ = ["BACKBONE", "ceiling_settings", "demo_settings", "demo_stages", "forgetful_settings", "plain_settings"]

BACKBONE = "resnet8"

_CHANGES = {
    # Mirrored digits are other characters, so views turn, stretch and shift but never flip.
    "base.view": "glyph",
    "first_view": "glyph",
    "second_view": "glyph",
    # On small grey digits the self-supervised base term costs more than it gives, and the branch drifts further.
    "base.contrastive": 0.0,
    "distillation.weight": 0.5,
    "assignment.information": 1.0,
    # There are equally many images of each digit.
    "assignment.balanced": True,
    "base.training.epochs": 30,
    "training.epochs": 30,
    "training.batch": 64,
}


def demo_stages(seed: int) -> Stages:
    """Return four labelled digits and two stages of three unlabelled ones, drawn by the seed."""
    train, test = demo_digits()
    return Stages(train, test, base=4, novel=[3, 3], split_seed=seed)


def demo_settings() -> Settings:
    """Return the settings of the demonstration: the default preset, adapted to small digits."""
    return preset("inlay").changed(_CHANGES)


def plain_settings() -> Settings:
    """Return settings for a plain supervised base: cross-entropy without augmentation."""
    return demo_settings().changed({"base.view": "none"})


def forgetful_settings() -> Settings:
    """Return settings for fine-tuning without memory.

    The same clustering trains every kernel, by an ungated branch, and the joint head, which predicts; nothing is
    replayed, distilled or refitted.
    """
    return demo_settings().changed(
        {
            "branch.gate": "imm",
            "training.epochs": 15,
            "distillation.weight": 0.0,
            "self_training.weight": 1.0,
            "classifier.refit": False,
            "classifier.drift": False,
            "classifier.decision": "linear",
        }
    )


def ceiling_settings() -> Settings:
    """Return settings for supervised training on everything, which needs fewer passes over more images."""
    return demo_settings().changed({"base.training.epochs": 15})
