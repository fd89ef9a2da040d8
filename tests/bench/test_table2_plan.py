import dataclasses
import json

import pytest

from inlay.bench.table2 import Choice, Run, published_orders, table2
from inlay.errors import InlayError
from inlay.increments.systems.catalogue import FAIR, PUBLISHED, Table

FIVE = ["full", "frozen", "imm", "constant", "amm"]


def test_table_a_has_every_system_as_it_was_published_and_its_hosts_with_amm() -> None:
    runs = table2(Choice("A"))
    hosts = [name for name, system in PUBLISHED.items() if system.takes_branches]
    assert hosts == list(FAIR)
    assert {run.row for run in runs} == {*PUBLISHED, *(f"{name}+amm" for name in hosts)}
    assert {run.stages for run in runs} == {10, 25}
    plain = [run for run in runs if run.control == "plain" and run.method != "dytox+"]
    assert all(run.system.recipe == PUBLISHED[run.method].recipe for run in plain)
    orders = {run.method: run.order for run in runs}
    assert (orders["podnet"], orders["necil"], orders["foster"]) == ("icarl-1993", "natural", "numpy-1993")


def test_by_default_amm_is_run_in_the_order_of_aanets_and_in_that_of_its_host() -> None:
    runs = table2(Choice("A"))
    for host in ("icarl", "podnet"):
        for stages in (10, 25):
            plain, amm, rival = (
                {run.order for run in runs if (run.row, run.stages) == (row, stages)}
                for row in (host, f"{host}+amm", f"{host}+aanets")
            )
            assert plain == amm and rival <= amm and "icarl-1993" in amm


def test_all_orders_over_which_a_figure_was_averaged_are_run_if_asked_for() -> None:
    runs = table2(Choice("A", stages=(10,), orders=("published",)))
    orders = {row: [run.order for run in runs if run.row == row] for row in {run.row for run in runs}}
    three = ["icarl-1993", "podnet-2", "podnet-3"]
    for row in ("podnet", "podnet+amm", "podnet+aanets", "afc", "der"):
        assert orders[row] == three == list(published_orders("afc"))
    assert orders["icarl"] == orders["icarl+amm"] == [*three, "numpy-1993"]
    assert (orders["foster"], orders["icarl+aanets"], orders["necil"]) == (["numpy-1993"], ["numpy-1993"], ["natural"])
    both = table2(Choice("A", ("podnet",), (10,), ("natural", "published", "podnet-2")))
    assert [run.order for run in both] == ["natural", *three]


@pytest.mark.parametrize(("table", "row"), [("A", "plain"), ("A", "amm"), ("B", "full"), ("B", "amm")])
def test_shorter_schedules_are_the_same_with_and_without_amm_and_can_be_lengthened(table: Table, row: str) -> None:
    for stages in (10, 25):
        run = Run("dytox+", table, row, stages, "icarl-1993")
        recipe, own = run.system.recipe, (PUBLISHED if table == "A" else FAIR)["dytox+"].recipe
        assert (recipe.base.epochs, recipe.stage.epochs) == (200, 60)
        for part, whole in ((recipe.base, own.base), (recipe.stage, own.stage)):
            assert [each.epochs * each.warm_up for each in (part, whole)] == pytest.approx([5, 5])
            assert dataclasses.replace(part, epochs=500, warm_up=0.01) == whole
        longer = dataclasses.replace(run, changes={"stage.epochs": "500"})
        assert longer.system.recipe.stage.epochs == 500
    assert [Run("der", "A", "plain", stages, "icarl-1993").system.recipe.stage.epochs for stages in (10, 25)] == [
        170,
        60,
    ]


def test_der_has_25_stages_only_if_asked_for_by_name() -> None:
    assert [run.stages for run in table2(Choice("A")) if run.method == "der"] == [10]
    assert [run.stages for run in table2(Choice("A", ("der",)))] == [10, 25]


def test_amm_is_a_control_of_its_host() -> None:
    (run,) = table2(Choice("A", ("icarl+amm",), (10,), ("natural",)))
    assert (run.method, run.control) == ("icarl", "amm")
    assert run.system.recipe == PUBLISHED["icarl"].recipe.changed({"branch.gate": "amm"})


def test_table_b_has_all_controls_of_every_host_in_three_orders() -> None:
    runs = table2(Choice("B", stages=(25,)))
    assert {run.method for run in runs} == set(FAIR)
    for name in FAIR:
        found = [(run.control, run.order) for run in runs if run.method == name]
        wanted = [*FIVE, "adapters"] if name == "necil" else FIVE
        assert found == [(control, order) for control in wanted for order in ("numpy-1993", "icarl-1993", "podnet-2")]


@pytest.mark.parametrize("control", [*FIVE, "adapters"])
def test_a_control_changes_what_is_trained_and_nothing_else(control: str) -> None:
    (run,) = table2(Choice("B", ("necil",), (10,), ("natural",), (control,)))
    recipe, own = run.system.recipe, FAIR["necil"].recipe
    assert dataclasses.replace(recipe, branch=own.branch) == own
    assert recipe.branch.gate == ("imm" if control == "adapters" else control)
    assert (recipe.branch == PUBLISHED["necil"].recipe.branch) == (control == "adapters")
    assert (recipe.branch.kernel, recipe.branch.batch_norm) == (
        ("1x1", False) if control == "adapters" else ("same", True)
    )


@pytest.mark.parametrize(
    ("base", "stages", "cut"), [(50, 10, (50, *[5] * 10)), (50, 25, (50, *[2] * 25)), (0, 10, (10,) * 10)]
)
def test_classes_are_cut_evenly(base: int, stages: int, cut: tuple[int, ...]) -> None:
    assert Run("icarl", "A", "plain", stages, "natural", base).cut == cut


def test_the_command_repeats_the_run() -> None:
    plain, amm = table2(Choice("A", ("icarl", "icarl+amm"), (10,), ("icarl-1993",)))
    assert plain.command == "inlay bench table2 --data ROOT --table A --methods icarl --stages 10 --orders icarl-1993"
    assert amm.command == (
        "inlay bench table2 --data ROOT --table A --methods icarl --controls amm --stages 10 --orders icarl-1993"
    )
    run = Run("podnet", "B", "full", 5, "natural", 0, 3, "cifar10", {"stage.epochs": "2", "base.epochs": "1"}, "my run")
    assert run.command == (
        "inlay bench table2 --data ROOT --table B --methods podnet --controls full --stages 5 --orders natural "
        "--base-classes 0 --seed 3 --dataset cifar10 --name 'my run' --set base.epochs=1 --set stage.epochs=2"
    )
    again = Choice("B", ("podnet",), (5,), ("natural",), ("full",), 0, 3, "cifar10", run.changes, "my run")
    assert table2(again) == [run]


def test_labels_tell_runs_apart() -> None:
    equal = Choice("A", ("icarl",), (10,), base_classes=0)
    runs = [run for choice in (Choice("A"), Choice("B"), equal) for run in table2(choice)]
    labels = [run.label for run in runs]
    assert len(set(labels)) == len(labels)
    assert "cifar100-B-icarl+amm-b50-25-podnet-2-seed0" in labels


def test_a_run_comes_back_from_json() -> None:
    run = Run("podnet", "B", "full", 5, "natural", 0, 3, "cifar10", {"stage.epochs": "2"}, "x")
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run


@pytest.mark.parametrize(
    ("choice", "complaint"),
    [
        (Choice("B", ("foster",)), "There is no method 'foster' in table B; choose from: icarl"),
        (Choice("A", ("icarl+aanets",), controls=("amm",)), r"icarl\+aanets has no controls"),
        (Choice("A", ("icarl+amm",), controls=("amm",)), r"icarl\+amm is a control itself; write icarl"),
        (Choice("A", ("icarl", "podnet"), name="x"), "--name is for one method"),
        (Choice("A", ("icarl",), (7,)), "50 classes beyond a base of 50 cannot be cut evenly into 7 stages"),
        (Choice("A", ("icarl",), (10,), base_classes=100), "0 classes beyond a base of 100"),
    ],
)
def test_what_does_not_go_together_is_refused(choice: Choice, complaint: str) -> None:
    with pytest.raises(InlayError, match=complaint):
        table2(choice)


@pytest.mark.parametrize("method", ["der", "foster"])
def test_equal_stages_share_a_memory_as_published(method: str) -> None:
    equal, based = (Run(method, "A", "plain", 10, "numpy-1993", base_classes=base) for base in (0, 50))
    assert [run.system.recipe.memory.share(100) for run in (equal, based)] == [20, 20]
    assert [run.system.recipe.memory.share(10) for run in (equal, based)] == [200, 20]
    own = dataclasses.replace(equal, changes={"memory.per_class": "7"})
    assert own.system.recipe.memory.share(10) == 7


def test_the_first_of_equal_stages_of_der_is_trained_as_the_others() -> None:
    equal, based = (Run("der", "A", "plain", 10, "icarl-1993", base_classes=base) for base in (0, 50))
    assert equal.system.recipe.base == equal.system.recipe.stage == PUBLISHED["der"].recipe.stage
    assert based.system.recipe == PUBLISHED["der"].recipe
    assert Run("foster", "A", "plain", 10, "numpy-1993", base_classes=0).system.recipe.base.epochs == 200
