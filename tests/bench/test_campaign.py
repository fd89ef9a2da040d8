import pytest

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
