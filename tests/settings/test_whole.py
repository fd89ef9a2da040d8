import re
from typing import Any

import pytest

from inlay.errors import InlayError
from inlay.settings import Settings, TrainingSettings
from inlay.settings.parsing import dotted_paths


def _at(settings: Settings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("path", "given", "wanted"),
    [
        ("training.epochs", "30", 30),
        ("training.learning_rate", "1e-3", 0.001),
        ("training.nesterov", "false", False),
        ("classifier.detach", "true", True),
        ("training.schedule", "step", "step"),
        ("training.decay_at", "0.5,0.75", (0.5, 0.75)),
        ("branch.include", "layer3*", ("layer3*",)),
        ("branch.include", "", ()),
        ("base.training.batch", "64", 64),
        ("first_view", "glyph", "glyph"),
        ("method", "adm", "adm"),
    ],
)
def test_change_by_text_touches_one_field(path: str, given: str, wanted: Any) -> None:
    before = Settings()
    after = before.changed({path: given})
    assert _at(after, path) == wanted
    assert type(_at(after, path)) is type(wanted)
    others = [other for other in dotted_paths(before.to_json()) if other != path]
    assert [other for other in others if _at(after, other) != _at(before, other)] == []


def test_change_leaves_the_original_alone() -> None:
    original = Settings(training=TrainingSettings(decay_at=(0.5,)))
    after = original.changed({"training.epochs": 7, "training.decay_at": (0.1, 0.2), "assignment.weight": 3})
    assert original == Settings(training=TrainingSettings(decay_at=(0.5,)))
    assert (after.training.epochs, after.training.decay_at, after.assignment.weight) == (7, (0.1, 0.2), 3.0)
    assert after.changed({}) == after


@pytest.mark.parametrize(
    "path", ["training.epoch", "training", "epochs", "training.epochs.more", "", ".epochs", "base.training", "a.b.c"]
)
def test_unknown_path_lists_all_settings(path: str) -> None:
    known = ", ".join(dotted_paths(Settings().to_json()))
    sentence = f"There is no setting {path!r}; the settings are: {known}."
    with pytest.raises(InlayError, match=f"^{re.escape(sentence)}$"):
        Settings().changed({path: "1"})


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("training.epochs", "1.5", "Setting 'training.epochs' must be a whole number, 0 or more; got '1.5'."),
        ("base.training.batch", 0, "Setting 'base.training.batch' must be at least 2; got 0."),
        ("classifier.ridge", 0, "Setting 'classifier.ridge' must be more than 0; got 0."),
        ("assignment.partner_share", 1.5, "Setting 'assignment.partner_share' must be at most 1; got 1.5."),
        (
            "distillation.form",
            "rows",
            "Setting 'distillation.form' must be one of batch, sample, raw, squared; got 'rows'.",
        ),
        ("contrastive.temperature", 0.0, "Setting 'contrastive.temperature' must be more than 0; got 0."),
    ],
)
def test_change_that_does_not_fit_names_the_path(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(InlayError, match=f"^{re.escape(sentence)}$"):
        Settings().changed({path: value})


def test_unknown_key_in_json_is_told() -> None:
    data = Settings().to_json()
    data["training"]["cool_down"] = 3
    with pytest.raises(InlayError, match=r"^There is no setting 'training\.cool_down'; write one of: epochs, batch, "):
        Settings.from_json(data)
