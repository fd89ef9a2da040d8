import dataclasses

import pytest

from inlay.bench.plan import Run
from inlay.bench.recipe import base_text, settings_of
from inlay.errors import InlayError
from inlay.settings import preset


@pytest.mark.parametrize(
    ("dataset", "view", "per_class", "ramp", "epochs"),
    [
        ("cifar10", "weak-reflect", 20, 0.25, 30),
        ("cifar100", "weak", 2, 0.75, 60),
        ("tinyimagenet", "weak-crop", 3, 0.75, 30),
    ],
)
def test_protocol_of_each_data_set(dataset: str, view: str, per_class: int, ramp: float, epochs: int) -> None:
    settings = settings_of(Run("adm", dataset, 0))
    assert (settings.first_view, settings.second_view) == (view, view)
    assert settings.replay.per_class == per_class
    assert settings.self_training.ramp == ramp
    assert (settings.training.epochs, settings.training.batch) == (epochs, 128)


@pytest.mark.parametrize(("system", "weight", "ramp"), [("frost", 50, 0.75), ("ncl", 50, 0.75)])
def test_consistency_is_that_of_the_data_set(system: str, weight: float, ramp: float) -> None:
    consistency = settings_of(Run(system, "cifar100", 0)).consistency
    assert (consistency.weight, consistency.ramp) == (weight, ramp)


@pytest.mark.parametrize("system", ["dtc", "restune"])
def test_consistency_that_is_a_systems_own_stands(system: str) -> None:
    assert settings_of(Run(system, "cifar100", 0)).consistency == preset(system).consistency


def test_inlay_keeps_its_strong_view_its_length_and_its_terms() -> None:
    settings, own = settings_of(Run("inlay", "tinyimagenet", 0)), preset("inlay")
    assert (settings.first_view, settings.second_view) == ("weak-crop", own.second_view)
    assert settings == dataclasses.replace(own, base=settings.base, first_view="weak-crop")


@pytest.mark.parametrize(("system", "gate"), [("frozen", "frozen"), ("full", "full")])
def test_references_are_inlay_with_another_gate(system: str, gate: str) -> None:
    settings, whole = settings_of(Run(system, "cifar10", 0)), settings_of(Run("inlay", "cifar10", 0))
    assert settings == whole.changed({"branch.gate": gate})


def test_imm_is_adm_with_another_gate() -> None:
    adm = settings_of(Run("adm", "cifar10", 0))
    assert settings_of(Run("imm", "cifar10", 0)) == adm.changed({"branch.gate": "imm"})


def test_all_systems_share_the_base_stage_of_a_recipe() -> None:
    for base, origin in (("reference", "paper"), ("ours", "inlay")):
        bases = [settings_of(Run(system, "cifar10", 0, base=base)).base for system in ("adm", "inlay", "ceiling")]
        assert bases[0] == bases[1] == bases[2]
        assert bases[0].contrastive == preset(origin).base.contrastive


@pytest.mark.parametrize(("dataset", "epochs", "view"), [("cifar10", 60, "weak"), ("tinyimagenet", 30, "weak-crop")])
def test_reference_base_stage_is_compressed_with_later_decays(dataset: str, epochs: int, view: str) -> None:
    base, whole = settings_of(Run("adm", dataset, 0)).base, preset("paper").base
    assert base.view == view
    assert base.training == dataclasses.replace(whole.training, epochs=epochs, batch=128, decay_at=(0.7, 0.9))


@pytest.mark.parametrize(
    ("dataset", "epochs", "view", "contrastive", "rotation"),
    [
        ("cifar10", 120, "weak-policy", 1.0, 0.0),
        ("cifar100", 120, "weak-policy", 0.0, 1.0),
        ("tinyimagenet", 60, "weak-crop-policy", 0.0, 1.0),
    ],
)
def test_our_base_stage_has_larger_batches_and_stronger_views(
    dataset: str, epochs: int, view: str, contrastive: float, rotation: float
) -> None:
    own = preset("inlay").base
    training = dataclasses.replace(own.training, epochs=epochs, batch=512, learning_rate=0.2)
    expected = dataclasses.replace(own, training=training, view=view, contrastive=contrastive, rotation=rotation)
    assert settings_of(Run("adm", dataset, 0, base="ours")).base == expected


@pytest.mark.parametrize("system", ["frost", "autonovel", "ncl", "adm"])
@pytest.mark.parametrize(
    ("dataset", "steps", "batch"),
    [("cifar10", 1, 64), ("cifar100", 1, 26), ("cifar100", 2, 14), ("tinyimagenet", 1, 128), ("tinyimagenet", 2, 128)],
)
def test_full_length_is_the_published_one_in_novel_images(system: str, dataset: str, steps: int, batch: int) -> None:
    settings = settings_of(Run(system, dataset, 0, steps=steps, full_length=True))
    own = preset("paper" if system == "adm" else system)
    assert settings.training == dataclasses.replace(own.training, epochs=200, batch=batch)
    assert settings.training.decay_at == (170 / 200,)
    assert settings.base.training == preset("paper").base.training


def test_full_length_changes_nothing_but_length() -> None:
    whole = settings_of(Run("frost", "cifar100", 0, full_length=True))
    compressed = settings_of(Run("frost", "cifar100", 0))
    length = {"training.epochs": 60, "training.batch": 128}
    assert dataclasses.replace(whole.changed(length), base=compressed.base) == compressed


def test_a_system_with_a_length_of_its_own_keeps_it_at_full_length() -> None:
    assert settings_of(Run("inlay", "cifar100", 0, full_length=True)).training == preset("inlay").training


def test_the_users_changes_come_last() -> None:
    changes = {"training.epochs": "2", "base.training.epochs": "1", "replay.per_class": "7"}
    settings = settings_of(Run("adm", "cifar10", 0, changes=changes))
    assert (settings.training.epochs, settings.base.training.epochs, settings.replay.per_class) == (2, 1, 7)


def test_another_preset_takes_the_place_of_the_systems_own() -> None:
    settings = settings_of(Run("inlay", "cifar10", 0, preset="paper"))
    assert settings.method == preset("paper").method


def test_wrong_names_are_refused() -> None:
    with pytest.raises(InlayError, match="There is no preset 'none'"):
        settings_of(Run("inlay", "cifar10", 0, preset="none"))
    with pytest.raises(InlayError, match="There is no setting 'epochs'"):
        settings_of(Run("inlay", "cifar10", 0, changes={"epochs": "1"}))


def test_recipe_in_words() -> None:
    assert base_text(settings_of(Run("adm", "cifar10", 0))) == (
        "cross-entropy 1 on weak views; 60 epochs, batch 128, learning rate 0.1, step at 0.7, 0.9, weight decay 0.0001"
    )
    turned = base_text(settings_of(Run("inlay", "cifar100", 0, base="ours")))
    assert turned.startswith("cross-entropy 1 on weak-policy views, quarter turns 1; 120 epochs, batch 512")
