import json
from typing import Any

import pytest

from inlay.errors import InlayError
from inlay.methods import method
from inlay.settings import Settings, preset, preset_names

# Item of the list of the paper's ambiguities and misprints, then the reading that the preset takes.
READINGS_OF_THE_PAPER: list[tuple[int, str, Any]] = [
    (1, "distillation.weight", 10.0),
    (1, "distillation.form", "batch"),
    (2, "regularization.weight", 1.0),
    (5, "contrastive.form", "standard"),
    (7, "contrastive.projection", 128),
    (8, "first_view", "weak"),
    (8, "second_view", "weak"),
    (9, "triplet.margin", 1.0),
    (9, "triplet.divide_by", "none"),
    (10, "self_training.divide_by_classes", True),
    (10, "self_training.weight", 1.0),
    (11, "triplet.mining", "hybrid"),
    (11, "triplet.other_view", "second"),
    (12, "classifier.detach", True),
    (13, "classifier.heads", "two"),
    (15, "replay.statistics", "shared"),
    (15, "replay.per_class", 20),
    (15, "replay.scale", 1.0),
    (15, "classifier.drift", False),
    (16, "branch.gate", "amm"),
    (16, "branch.absolute_gamma", False),
    (20, "branch.include", ()),
    (22, "training.learning_rate", 0.1),
    (22, "training.momentum", 0.9),
    (22, "training.nesterov", False),
    (22, "training.weight_decay", 1e-4),
    (22, "training.schedule", "step"),
    (22, "training.decay_at", (170 / 200,)),
    (22, "base.training.decay_at", (30 / 200, 60 / 200, 90 / 200, 120 / 200, 150 / 200, 180 / 200)),
    (22, "base.training.batch", 128),
]
UNWEIGHTED_TERMS_OF_THE_PAPER = ["contrastive", "triplet", "regularization", "replay"]
BEYOND_THE_PAPER = ["assignment.weight", "assignment.information", "base.contrastive", "classifier.refit"]


# What the published code of each system does.
PUBLISHED: list[tuple[str, str, Any]] = [
    *((name, "branch.include", ("layer[234]*",)) for name in ("autonovel", "ncl", "frost")),
    *((name, "branch.gate", "full") for name in ("autonovel", "ncl", "frost", "dtc")),
    ("restune", "branch.gate", "twin"),
    ("autonovel", "pairs.rule", "rank"),
    ("autonovel", "pairs.largest", 5),
    ("frost", "pairs.rule", "rank"),
    ("ncl", "pairs.rule", "cosine"),
    ("ncl", "pairs.threshold", 0.95),
    ("ncl", "neighbourhood.queue", 2000),
    ("ncl", "neighbourhood.temperature", 0.05),
    ("ncl", "neighbourhood.share", 0.2),
    ("frost", "distillation.weight", 10.0),
    ("frost", "distillation.form", "batch"),
    ("frost", "self_training.weight", 0.01),
    ("frost", "classifier.detach", False),
    *((name, "clustering.mean", "elements") for name in ("dtc", "restune")),
    *((name, "training.learning_rate", 0.05) for name in ("dtc", "restune")),
    *((name, "training.decay_at", ()) for name in ("dtc", "restune")),
    ("dtc", "consistency.weight", 10.0),
    ("restune", "consistency.weight", 1.0),
    ("restune", "consistency.ramp", 0.0),
    ("restune", "ranking.extremes", 10),
    ("restune", "softened.weight", 1.0),
    ("restune", "softened.temperature", 2.0),
]
PRESETS = ["inlay", "paper", "autonovel", "restune", "ncl", "dtc", "frost", "frost+aff", "frost+amm", "kmeans"]


def _at(settings: Settings, path: str) -> Any:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def test_default_preset_comes_first() -> None:
    assert preset_names() == PRESETS


@pytest.mark.parametrize("name", preset_names())
def test_preset_survives_json(name: str) -> None:
    settings = preset(name)
    assert Settings.from_json(json.loads(json.dumps(settings.to_json(), allow_nan=False))) == settings


@pytest.mark.parametrize("name", preset_names())
def test_preset_fits_its_method(name: str) -> None:
    settings = preset(name)
    chosen = method(settings.method)
    chosen.check(settings)
    assert all(term.weight(settings, 1.0) for term in chosen.terms if name != "inlay")
    assert any(term.weight(settings, 1.0) for term in chosen.terms) is (name != "kmeans")


def test_presets_differ() -> None:
    assert len({preset(name) for name in PRESETS}) == len(PRESETS)
    assert (preset("inlay").method, preset("paper").method) == ("inlay", "adm")
    assert {preset(name).method for name in PRESETS if name.startswith("frost")} == {"frost"}


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("inlay", "kmeans")])
def test_systems_of_the_paper_share_base_stage_and_classifier_settings(name: str) -> None:
    own, paper = preset(name), preset("paper")
    assert own.base == paper.base
    assert (own.classifier.refit, own.classifier.drift) == (False, False)
    assert own.replay.statistics == paper.replay.statistics


@pytest.mark.parametrize(("name", "path", "value"), PUBLISHED)
def test_published_choices_of_the_other_systems(name: str, path: str, value: Any) -> None:
    assert _at(preset(name), path) == value


@pytest.mark.parametrize("gate", ["aff", "amm"])
def test_frost_on_branches_differs_in_what_is_trained_alone(gate: str) -> None:
    changes = {"branch.gate": gate, "branch.include": ()}
    assert preset("frost").changed(changes) == preset(f"frost+{gate}")


def test_unknown_preset_is_told() -> None:
    with pytest.raises(InlayError, match=r"^There is no preset 'best'; choose one of: inlay, paper, .*, kmeans\.$"):
        preset("best")


@pytest.mark.parametrize(("item", "path", "reading"), READINGS_OF_THE_PAPER, ids=lambda value: str(value))
def test_paper_is_read_so_that_it_makes_sense(item: int, path: str, reading: Any) -> None:
    assert _at(preset("paper"), path) == reading, f"item {item}"


@pytest.mark.parametrize("term", UNWEIGHTED_TERMS_OF_THE_PAPER)
def test_terms_that_the_paper_does_not_weight_have_weight_one(term: str) -> None:
    assert _at(preset("paper"), f"{term}.weight") == 1.0


@pytest.mark.parametrize("path", BEYOND_THE_PAPER)
def test_what_the_paper_does_not_have_is_off(path: str) -> None:
    assert not _at(preset("paper"), path)
