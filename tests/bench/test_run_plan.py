import json
import shlex

import pytest

from inlay.bench import Choice, Run, table1, variations
from inlay.bench.datasets import BENCHMARKS
from inlay.bench.recipe import base_name, settings_of
from inlay.bench.schedule import published_stage_length
from inlay.bench.systems import SYSTEMS, TABLE
from inlay.bench.variants import GROUPS
from inlay.errors import InlayError

ALL = ("cifar10", "cifar100", "tinyimagenet")


def test_the_table_has_nine_systems_by_three_data_sets_by_seeds() -> None:
    runs = table1(Choice(None, ALL, (0, 1, 2)))
    assert len(runs) == 9 * 3 * 3
    assert len({run.label for run in runs}) == len(runs)
    assert [run.system for run in runs[::9]] == list(TABLE)


def test_splits_multiply_the_runs() -> None:
    runs = table1(Choice(("adm", "frozen"), ("cifar10",), (0,), split_seeds=(4, 5, 6)))
    assert [(run.system, run.split_seed) for run in runs] == [
        (system, split) for system in ("adm", "frozen") for split in (4, 5, 6)
    ]


def test_neighbours_in_the_plan_have_base_stages_of_their_own() -> None:
    runs = table1(Choice(None, ALL, (0, 1)))
    assert len({(run.dataset, run.seed) for run in runs[:6]}) == 6


def test_runs_share_a_base_stage_if_they_have_the_same_name_for_it() -> None:
    run = Run("adm", "cifar100", 0)
    alike = [Run("inlay", "cifar100", 0), Run("adm", "cifar100", 0, steps=2), Run("frost", "cifar100", 0, name="x")]
    assert {base_name(other) for other in alike} == {base_name(run)}
    apart = [
        Run("adm", "cifar10", 0),
        Run("adm", "cifar100", 1),
        Run("adm", "cifar100", 0, split_seed=2),
        Run("adm", "cifar100", 0, steps=5),
        Run("adm", "cifar100", 0, base="ours"),
        Run("adm", "cifar100", 0, full_length=True),
        Run("ceiling", "cifar100", 0),
        Run("adm", "cifar100", 0, changes={"base.training.epochs": "9"}),
        Run("adm", "cifar100", 0, backbone="resnet8"),
    ]
    assert len({base_name(other) for other in [run, *apart]}) == 1 + len(apart)


def test_several_steps_leave_out_what_cannot_go_on() -> None:
    runs = table1(Choice(None, ("cifar100",), (0,), steps=2))
    assert [run.system for run in runs] == ["frost", "frost+amm", "adm", "inlay"]


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        (Choice(("magic",), ALL, (0,)), "There is no method 'magic' in the benchmark; choose from: autonovel,"),
        (Choice(None, ("mnist",), (0,)), "There is no data set 'mnist'"),
        (Choice(None, ALL, (0,), steps=2), "cifar10 is not cut into 2"),
        (Choice(("frost+aff",), ("cifar100",), (0,), steps=2), "frost.aff cannot go on"),
        (Choice(("ncl",), ("cifar100",), (0,), steps=2), "ncl cannot go on"),
        (Choice(None, ALL, (0,), base="theirs"), "There is no base recipe 'theirs'; write --base reference or ours."),
        (Choice(None, ALL, (0,), name="x"), "--name is for one method"),
        (Choice(None, ALL, (0,), preset="paper"), "--preset is for one method"),
    ],
)
def test_what_does_not_go_together_is_refused(choice: Choice, complaint: str) -> None:
    with pytest.raises(InlayError, match=complaint):
        table1(choice)


@pytest.mark.parametrize(
    ("run", "label"),
    [
        (Run("adm", "cifar10", 0), "cifar10-adm-seed0"),
        (Run("adm", "cifar10", 0, name="no-kd"), "cifar10-no-kd-seed0"),
        (
            Run("inlay", "cifar100", 2, split_seed=1, steps=5, base="ours", full_length=True),
            "cifar100-inlay-steps5-split1-base-ours-full-length-seed2",
        ),
    ],
)
def test_label(run: Run, label: str) -> None:
    assert run.label == label


def test_the_command_names_what_is_not_usual() -> None:
    assert Run("adm", "cifar10", 0).command == (
        "inlay bench table1 --data ROOT --methods adm --datasets cifar10 --seeds 0"
    )
    run = Run(
        "adm", "cifar100", 1, 2, 5, "ours", {"training.epochs": "3", "base.view": "weak"}, "my run", full_length=True
    )
    words = shlex.split(run.command)
    assert words[words.index("--seeds") :] == shlex.split(
        "--seeds 1 --split-seeds 2 --steps 5 --base ours --name 'my run' --full-length --base-set base.view=weak "
        "--set training.epochs=3"
    )


def test_a_run_comes_back_from_json() -> None:
    run = Run("adm", "cifar100", 1, 2, 5, "ours", {"training.epochs": "3"}, "x", "paper", "resnet8", True)
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


def test_the_systems_without_a_joint_head_are_marked() -> None:
    assert {name for name, entry in SYSTEMS.items() if entry.concatenated} == {"autonovel", "restune", "ncl", "dtc"}


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
@pytest.mark.parametrize("group", GROUPS)
def test_every_variant_has_settings_of_its_own(group: str, dataset: str) -> None:
    runs = variations(Choice(None, (dataset,), (0,)), [group])
    wanted = [variant for variant in GROUPS[group] if dataset in (variant.datasets or (dataset,))]
    assert [run.name for run in runs] == [variant.name for variant in wanted]
    unchanged = {run.system: settings_of(Run(run.system, dataset, 0)) for run in runs}
    everything = [*unchanged.values(), *(settings_of(run) for run in runs)]
    assert all(a != b for index, a in enumerate(everything) for b in everything[:index])


def test_a_variant_for_some_data_sets_is_run_on_those_alone() -> None:
    runs = variations(Choice(None, ("cifar10", "cifar100"), (0,)), ["diagnosis"])
    batches = [(run.dataset, run.changes["training.batch"]) for run in runs if run.name and "frost-batch" in run.name]
    assert batches == [("cifar10", "64"), ("cifar100", "26")]
    for dataset, batch in batches:
        assert published_stage_length(BENCHMARKS[dataset], 1)["training.batch"] == int(batch)


@pytest.mark.parametrize(
    ("dataset", "name", "steps_an_epoch", "published"),
    [
        ("cifar10", "diagnosis-frost-ramp-19550", 196, 50 * 391),
        ("cifar100", "diagnosis-frost-ramp-58650", 79, 150 * 391),
    ],
)
def test_consistency_rises_over_as_many_steps_as_published(
    dataset: str, name: str, steps_an_epoch: int, published: int
) -> None:
    (run,) = [run for run in variations(Choice(None, (dataset,), (0,)), ["diagnosis"]) if run.name == name]
    settings = settings_of(run)
    steps = settings.training.epochs * steps_an_epoch
    assert settings.consistency.ramp * steps == pytest.approx(published, rel=1e-3)
    assert settings.self_training.ramp == BENCHMARKS[dataset].numbers["self_training.ramp"]


def test_the_ladder_ends_near_the_preset_inlay() -> None:
    """What the last rung leaves to the preset, but for terms that neither has, is few and named."""
    last = settings_of(variations(Choice(None, ("cifar10",), (0,)), ["ladder"])[-1]).to_json()
    ours = settings_of(Run("inlay", "cifar10", 0)).to_json()
    differing = {
        f"{part}.{name}" if isinstance(ours[part], dict) else part
        for part in ours
        if not isinstance(ours[part], dict) or ours[part].get("weight", 1) or last[part].get("weight", 1)
        for name in (ours[part] if isinstance(ours[part], dict) else [part])
        if (ours[part][name] if isinstance(ours[part], dict) else ours[part])
        != (last[part][name] if isinstance(last[part], dict) else last[part])
    }
    assert differing <= {"replay.scale", "training.decay_at", "replay.per_class"}


def test_an_unknown_group_of_variants_is_refused() -> None:
    with pytest.raises(InlayError, match="choose from: ladder, ablations, gates"):
        variations(Choice(None, ("cifar10",), (0,)), ["gate"])
