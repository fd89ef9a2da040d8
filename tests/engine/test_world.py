import os
from pathlib import Path

import pytest
import torch
from torch import nn

from inlay.engine.world import World
from world_child import IMAGES, Results, launch, mixed_tensors, train


@pytest.fixture(scope="module", params=[1, 3])
def seen(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    """What each process of a group saw."""
    return launch("world", request.param, tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="module")
def alone() -> dict[str, Results]:
    """Training in one process without a group."""
    return {str(dtype): train(World(), dtype) for dtype in (torch.float64, torch.float32)}


def test_place_of_each_process(seen: list[Results]) -> None:
    for rank, results in enumerate(seen):
        assert results["facts"] == [rank, len(seen), rank, rank == 0, True]
        assert results["again"]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not list the threads of a process")
def test_no_thread_of_the_group_outlives_it(seen: list[Results]) -> None:
    for results in seen:
        assert results["group threads"]
        assert results["group threads at exit"] == []


def test_cores_are_shared(seen: list[Results]) -> None:
    share = max(1, len(os.sched_getaffinity(0)) // len(seen))
    assert [results["threads"] for results in seen] == [share] * len(seen)


def test_rows_are_equal_parts_in_order(seen: list[Results]) -> None:
    covered = [row for results in seen for row in range(*results["rows"])]
    assert covered == list(range(IMAGES))
    assert {len(range(*results["rows"])) for results in seen} == {IMAGES // len(seen)}


@pytest.mark.parametrize("number, dim", [(0, 0), (1, 1), (2, -1)])
def test_gather_joins_with_gradient_times_processes(seen: list[Results], number: int, dim: int) -> None:
    parts = [torch.full((2, 3), float(rank)) for rank in range(len(seen))]
    whole = torch.cat(parts, dim)
    gradients = torch.arange(whole.numel()).view_as(whole).chunk(len(seen), dim)
    for gradient, results in zip(gradients, seen, strict=True):
        found = results["gather"][number]
        assert torch.equal(found["whole"], whole)
        assert torch.equal(found["gradient"], float(len(seen)) * gradient)
        assert found["same"] == (len(seen) == 1)


def test_collect_joins_parts_of_any_length(seen: list[Results]) -> None:
    rows = [[10 * rank + 2 * row, 10 * rank + 2 * row + 1] for rank in range(len(seen)) for row in range(rank)]
    flags = sum(2 - rank % 2 for rank in range(len(seen)))
    for results in seen:
        assert torch.equal(results["collect"], torch.tensor(rows, dtype=torch.int64).view(-1, 2))
        assert torch.equal(results["collect bool"], torch.ones(flags, dtype=torch.bool))


def test_broadcast_overwrites_with_the_tensors_of_the_main_process(seen: list[Results]) -> None:
    wanted = mixed_tensors(0)
    assert not torch.equal(mixed_tensors(1)[0], wanted[0])
    for results in seen:
        for found, tensor in zip(results["broadcast"], wanted, strict=True):
            assert found.dtype == tensor.dtype
            assert found.stride() == tensor.stride()
            assert torch.equal(found, tensor)


def test_processes_agree_and_share(seen: list[Results]) -> None:
    for results in seen:
        assert results["agree"] == (True, True, False, True)
        assert results["share"] == {"rank": 0}


def test_main_process_goes_first(seen: list[Results]) -> None:
    assert [results["main first"] for results in seen] == ["rank 0\n"] * len(seen)


def test_action_by_the_main_process_is_done_once_and_awaited(seen: list[Results]) -> None:
    assert [results["by main"] for results in seen] == ["rank 0\n"] * len(seen)


@pytest.mark.parametrize(
    "case, in_main, in_others",
    [
        ("main refuses", "InlayError: Write less.", "FailedElsewhereError: Write less."),
        ("main fails", "KeyError: 'page'", "FailedElsewhereError: The main process failed with KeyError('page')."),
    ],
)
def test_failure_of_the_main_process_reaches_all(seen: list[Results], case: str, in_main: str, in_others: str) -> None:
    main, *others = (results[case] for results in seen)
    assert main == {"entered": True, "raised": in_main}
    assert others == [{"entered": False, "raised": in_others}] * (len(seen) - 1)


@pytest.mark.parametrize("dtype, tolerance", [("torch.float64", 1e-12), ("torch.float32", 2e-4)])
def test_training_together_equals_training_alone(
    seen: list[Results], alone: dict[str, Results], dtype: str, tolerance: float
) -> None:
    for results in seen:
        found = results["training"][dtype]
        assert found.keys() == alone[dtype].keys()
        for name, wanted in alone[dtype].items():
            torch.testing.assert_close(found[name], wanted, rtol=0, atol=tolerance, msg=name)


def test_processes_end_with_the_same_bits(seen: list[Results]) -> None:
    first, *others = (results["training"]["torch.float32"] for results in seen)
    for other in others:
        assert [name for name in first if not torch.equal(first[name], other[name])] == []


def test_plain_process_is_a_world_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    world = World.current()
    assert world == World(rank=0, size=1, local_rank=0, parallel=False)
    assert world.is_main
    assert world is World.current()


def test_world_of_one_gives_back_what_it_is_given() -> None:
    world, part, module = World(), torch.randn(3, 2), nn.Linear(2, 2)
    before = part.clone()
    assert world.rows(7) == slice(0, 7)
    assert world.gather(part, 1) is part
    assert torch.equal(world.collect(part), part)
    world.broadcast([part])
    assert torch.equal(part, before)
    assert world.agree(True, False) == (True, False)
    assert world.share("anything") == "anything"
    assert world.wrap(module) is module
    with pytest.raises(KeyError), world.main_first():
        raise KeyError


def test_world_of_one_leaves_batch_norm_alone() -> None:
    rows = torch.randn(4, 3)
    with World().global_statistics():
        found = nn.functional.batch_norm(rows, None, None, training=True)
    assert torch.equal(found, nn.functional.batch_norm(rows, None, None, training=True))


def test_rows_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ValueError, match="10 rows cannot be divided equally among 3 processes"):
        World(rank=1, size=3).rows(10)
