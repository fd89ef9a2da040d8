import pytest

from inlay.bench import Choice, Run, variations
from inlay.bench.campaign import PARTS, campaign
from inlay.bench.recipe import settings_of
from inlay.bench.systems import SYSTEMS, TABLE
from inlay.bench.variants import GROUPS
from inlay.errors import InlayError


def test_every_system_is_run_on_every_data_set_and_four_with_three_seeds() -> None:
    runs = campaign(["table"])
    for dataset in ("cifar10", "cifar100", "tinyimagenet"):
        seeds = {name: [run.seed for run in runs if (run.system, run.dataset) == (name, dataset)] for name in SYSTEMS}
        assert {name for name, found in seeds.items() if found == [0, 1, 2]} == {"frost", "frost+amm", "adm", "inlay"}
        assert all(found[0] == 0 for found in seeds.values())
    assert [run.system for run in runs[: 3 * len(TABLE) : 3]] == list(TABLE)


def test_no_run_comes_twice_and_all_have_settings() -> None:
    runs = campaign()
    assert len({run.label for run in runs}) == len(runs) == sum(len(campaign([part])) for part in PARTS)
    for run in runs:
        settings_of(run)


def test_parts_and_data_sets_are_chosen() -> None:
    assert {(run.system, run.base) for run in campaign(["ours"])} == {("adm", "ours"), ("inlay", "ours")}
    assert [run.name for run in campaign(["gates"], ["cifar100"])] == [variant.name for variant in GROUPS["gates"]]
    assert {(run.dataset, run.steps) for run in campaign(["steps"])} == {
        ("cifar100", 2),
        ("cifar100", 5),
        ("tinyimagenet", 2),
    }
    assert campaign(["length"], ["cifar100"]) == []
    with pytest.raises(InlayError, match="has no part 'colours'; choose from: table, ours,"):
        campaign(["colours"])


def test_random_splits_are_not_those_that_decided_settings() -> None:
    assert not {run.split_seed for run in campaign(["splits"])} & {1, 91, 383}


def test_all_that_the_page_promises_is_planned() -> None:
    """A run for each line of the page, written out here so that none can be dropped from the plan unseen."""
    cifar, followed = ("cifar10", "cifar100"), ("frost", "adm", "inlay")
    every = (*cifar, "tinyimagenet")
    nine = ("autonovel", "restune", "ncl", "dtc", "frost", "frost+aff", "frost+amm", "adm", "inlay")
    promised = [
        *(Run(system, dataset, 0) for system in nine for dataset in every),
        *(Run(system, dataset, seed) for system in followed for dataset in every for seed in (1, 2)),
        *(
            Run(system, dataset, seed, base="ours")
            for system in ("adm", "inlay")
            for dataset in every
            for seed in range(3)
        ),
        *(Run(system, dataset, 0, steps=2) for system in followed for dataset in ("cifar100", "tinyimagenet")),
        *(Run(system, "cifar100", 0, steps=5) for system in followed),
        *(Run(system, dataset, 0, split_seed=split) for system in followed for dataset in cifar for split in (2, 3, 4)),
        *(Run(system, "cifar10", 0, full_length=True) for system in ("frost", "adm")),
        *variations(Choice(None, cifar, (0,)), ["ladder", "ablations", "gates", "diagnosis"]),
        # What gates are held against besides their own controls.
        *(Run("imm", dataset, 0) for dataset in every),
    ]
    planned = campaign()
    assert [run.label for run in promised if run not in planned] == []


@pytest.mark.parametrize(("group", "count"), [("ladder", 11), ("ablations", 9), ("gates", 6)])
def test_no_line_of_a_table_of_variants_is_dropped(group: str, count: int) -> None:
    assert len(GROUPS[group]) == count


def test_diagnoses_have_as_many_seeds_as_what_they_explain_and_come_before_the_longest_runs() -> None:
    runs = campaign(["diagnosis"])
    seeds = {(run.dataset, run.row): [other.seed for other in runs if other.row == run.row] for run in runs}
    assert seeds["cifar10", "diagnosis-frost-batch-64"] == [0, 1, 2]
    assert seeds["cifar100", "diagnosis-inlay-rate-0.01"] == [0, 1, 2]
    assert seeds["cifar10", "diagnosis-adm-batch-64-base-ours"] == [0]
    assert [run.seed for run in runs] == sorted([run.seed for run in runs], key=bool)
    assert list(PARTS)[-2:] == ["diagnosis", "length"]
