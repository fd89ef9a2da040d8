import errno
import fcntl
import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import Tensor

from inlay.branches.delta import applied, moved, rounded
from inlay.branches.history import History
from inlay.errors import InlayError

State = dict[str, Tensor]


def _base(dtype: torch.dtype = torch.float32) -> State:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 3, 2, 2, generator=generator).to(dtype)
    return {
        "b.weight": weight.to(memory_format=torch.channels_last),
        "b.gamma": torch.randn(4, generator=generator).to(dtype),
        "a.bias": torch.randn(4, generator=generator).to(dtype),
        "norm.num_batches_tracked": torch.tensor(0),
    }


def _delta(state: State, seed: int, storage: torch.dtype | None = None) -> State:
    """Movement of all tensors but a.bias, which moves at even seeds only."""
    generator = torch.Generator().manual_seed(seed)
    names = ("b.weight", "b.gamma") if seed % 2 else ("b.weight", "b.gamma", "a.bias")
    delta = {n: 0.1 * torch.randn(state[n].shape, generator=generator, dtype=torch.float64) for n in names}
    return rounded({**delta, "norm.num_batches_tracked": torch.tensor(seed)}, state, storage)


def _recorded(
    folder: Path, stages: int = 3, dtype: torch.dtype = torch.float32, storage: torch.dtype | None = None
) -> tuple[History, list[State]]:
    history, states = History(folder), [_base(dtype)]
    for stage in range(1, stages + 1):
        delta = _delta(states[-1], stage, storage)
        assert history.record(states[-1], delta, {"stage": stage}) == stage
        states.append(applied(states[-1], delta))
    return history, states


def _same(state: State, expected: State) -> bool:
    return list(state) == list(expected) and moved(state, expected) == {}


@pytest.mark.parametrize("storage", [None, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_three_stages_are_replayed_bit_for_bit(tmp_path: Path, dtype: torch.dtype, storage: torch.dtype | None) -> None:
    _, states = _recorded(tmp_path / "deep" / "stages", dtype=dtype, storage=storage)
    again = History(str(tmp_path / "deep" / "stages"))
    assert again.stage_count == 3
    for number, state in enumerate(states):
        assert _same(again.state(number), state)
        assert _same(again.stage(number).state(), state)
        assert again.facts(number) == ({"stage": number} if number else {})
    assert sum(not _same(states[i], states[j]) for i in range(4) for j in range(i)) == 6


def test_half_precision_stages_take_half_the_space(tmp_path: Path) -> None:
    state = {"weight": torch.randn(100, 100)}
    for storage in (torch.float32, torch.float16):
        delta = rounded({"weight": torch.randn(100, 100)}, state, storage)
        History(tmp_path / str(storage)).record(state, delta, {})
    full, half = ((tmp_path / str(s) / "stage-001.safetensors").stat().st_size for s in (torch.float32, torch.float16))
    assert full - half == 2 * 100 * 100


def test_stages_share_no_memory(tmp_path: Path) -> None:
    history, states = _recorded(tmp_path)
    history.state(1)["a.bias"].zero_()
    history.state(0)["a.bias"].zero_()
    for number, state in enumerate(states):
        assert _same(history.state(number), state)


def test_the_history_keeps_what_was_recorded_when_the_given_tensors_change(tmp_path: Path) -> None:
    base = _base()
    kept = {name: tensor.clone() for name, tensor in base.items()}
    delta = _delta(base, 1)
    after = applied(kept, {name: tensor.clone() for name, tensor in delta.items()})
    history = History(tmp_path)
    history.record(base, delta, {})
    for tensor in [*base.values(), *delta.values()]:
        tensor.zero_()
    assert _same(history.state(0), kept)
    assert _same(history.state(1), after)


def test_tied_tensors_are_stored(tmp_path: Path) -> None:
    shared = torch.randn(3, 3)
    base = {"encoder.weight": shared, "decoder.weight": shared, "part": shared[0]}
    change = torch.randn(3, 3)
    delta = {"encoder.weight": change, "decoder.weight": change, "part": change[0]}
    history = History(tmp_path)
    history.record(base, delta, {})
    assert _same(history.state(1), applied(base, delta))


def test_a_stage_in_which_nothing_moved_is_a_stage(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.record(_base(), {}, {})
    assert history.record(_base(), {}, {}) == 2
    assert _same(history.state(2), _base())


def test_facts_come_back_as_they_were(tmp_path: Path) -> None:
    facts = {"storage": "float16", "tolerance": 1e-4, "relative_diff": 1.2345678901234567e-6, "gate": None, "n": [1, 2]}
    history = History(tmp_path)
    history.record(_base(), _delta(_base(), 1), facts)
    assert history.facts(1) == facts
    with pytest.raises(ValueError, match="JSON"):
        history.record(history.state(1), {}, {"tolerance": float("nan")})
    assert history.stage_count == 1


def test_recording_the_same_stage_twice_is_refused(tmp_path: Path) -> None:
    history, states = _recorded(tmp_path)
    for number in range(3):
        with pytest.raises(InlayError, match=rf"its stage {number}, to stage 3, .*merged already.*another folder"):
            history.record(states[number], _delta(states[number], number + 1), {})
    assert history.stage_count == 3
    assert _same(history.state(3), states[3])


def test_recording_another_network_is_refused(tmp_path: Path) -> None:
    history, states = _recorded(tmp_path)
    weights = {**states[3], "a.bias": states[3]["a.bias"] + 1}
    missing = {name: tensor for name, tensor in states[3].items() if name != "a.bias"}
    added = {**states[3], "head.weight": torch.zeros(2)}
    retyped = {**states[3], "a.bias": states[3]["a.bias"].half()}
    reasons = ["with other weights than stages 0 to 3", "'a.bias'", "no tensor 'head.weight'", "'a.bias' is float32"]
    for state, reason in zip((weights, missing, added, retyped), reasons, strict=True):
        with pytest.raises(InlayError, match=f"belongs to another network, .*{reason}.*; use another folder"):
            history.record(state, {}, {})
    with pytest.raises(InlayError, match="The delta belongs to another network"):
        history.record(states[3], {"other": torch.zeros(1)}, {})
    assert history.stage_count == 3


def test_work_goes_on_from_a_truncated_history(tmp_path: Path) -> None:
    history, states = _recorded(tmp_path)
    history.truncate(1)
    assert history.stage_count == 1
    assert not (tmp_path / "stage-002.safetensors").exists()
    delta = _delta(states[1], 8)
    assert history.record(states[1], delta, {}) == 2
    assert _same(history.state(2), applied(states[1], delta))
    history.truncate(0)
    assert history.stage_count == 0
    assert _same(history.state(0), states[0])


@pytest.mark.parametrize("number", [-1, 4])
def test_a_stage_out_of_range_is_refused(tmp_path: Path, number: int) -> None:
    history, _ = _recorded(tmp_path)
    for asked in (history.state, history.facts, history.stage, history.truncate):
        with pytest.raises(InlayError, match=rf"has no stage {number}; write a number from 0 to 3"):
            asked(number)


def test_a_folder_without_history_is_named(tmp_path: Path) -> None:
    missing = History(tmp_path / "missing")
    assert missing.stage_count == 0
    for asked in (missing.state, missing.facts, missing.stage, missing.truncate):
        with pytest.raises(InlayError, match=r"missing holds no history of stages"):
            asked(0)
    assert not (tmp_path / "missing").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(b"photo")
    with pytest.raises(InlayError, match="is not empty and holds no history"):
        History(tmp_path).record(_base(), {}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["photo.png"]
    with pytest.raises(InlayError, match="is a file"):
        History(tmp_path / "photo.png").record(_base(), {}, {})


def test_stages_without_their_list_are_not_overwritten(tmp_path: Path) -> None:
    history, states = _recorded(tmp_path)
    (tmp_path / "history.json").unlink()
    with pytest.raises(InlayError, match=r"as history.json is missing; restore"):
        history.record(states[0], {}, {})
    assert (tmp_path / "stage-003.safetensors").exists()


@pytest.mark.parametrize("name", ["base.safetensors", "stage-001.safetensors", "stage-002.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "flipped", "cut", "empty"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: str) -> None:
    history, states = _recorded(tmp_path)
    path = tmp_path / name
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        path.write_bytes({"flipped": flipped, "cut": content[:-3], "empty": b""}[damage])
    with pytest.raises(InlayError, match=rf"{name}.*restore"):
        history.state(3)
    if name == "stage-002.safetensors":
        assert _same(history.state(1), states[1])


def test_a_list_of_stages_that_was_edited_is_refused(tmp_path: Path) -> None:
    history, _ = _recorded(tmp_path)
    path = tmp_path / "history.json"
    whole = json.loads(path.read_text())
    edited: list[Any] = [{**whole, "stages": whole["stages"][:-1]}, [], {**whole, "format": "1"}]
    for value in edited:
        path.write_text(json.dumps(value))
        with pytest.raises(InlayError, match=r"history.json was changed after it was written"):
            history.state(1)
    path.write_text("{")
    with pytest.raises(InlayError, match=r"history.json is damaged"):
        history.record(_base(), {}, {})
    path.write_text(json.dumps({**whole, "format": 2}))
    with pytest.raises(InlayError, match="newer inlay"):
        history.state(1)


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    history, states = _recorded(tmp_path)
    with open(tmp_path / ".lock", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InlayError, match="Another process is writing"):
            history.record(states[3], {}, {})
        assert _same(history.state(3), states[3])
    assert history.record(states[3], {}, {}) == 4


def _die_at(turn: int, work: Callable[[], object]) -> None:
    """Do some work in this process, which ends at once where it would touch the disk for the given time."""
    turns = iter(range(1, 1000))

    def dying(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if next(turns) == turn:
                os._exit(9)
            return function(*arguments, **named)

        return call

    os.fsync, os.replace, os.unlink = dying(os.fsync), dying(os.replace), dying(os.unlink)
    Path.unlink = dying(Path.unlink)  # type: ignore[method-assign]
    work()


def _survives_a_kill(turn: int, work: Callable[[], object]) -> bool:
    child = multiprocessing.get_context("fork").Process(target=_die_at, args=(turn, work))
    child.start()
    child.join()
    assert child.exitcode in (0, 9)
    return child.exitcode == 0


@pytest.mark.parametrize("stages", [0, 1, 2])
def test_a_kill_while_recording_leaves_the_history_as_before_or_after(tmp_path: Path, stages: int) -> None:
    turn, survived, counts = 0, False, []
    while not survived:
        turn += 1
        history, states = _recorded(tmp_path / str(turn), stages)
        delta = _delta(states[-1], 7)
        survived = _survives_a_kill(turn, lambda h=history, s=states[-1], d=delta: h.record(s, d, {"n": 7}))  # type: ignore[misc]
        counts.append(history.stage_count)
        assert history.stage_count in (stages, stages + 1)
        if history.stage_count == stages:
            for number, state in enumerate(states if stages else []):
                assert _same(history.state(number), state)
            assert history.record(states[-1], delta, {"n": 7}) == stages + 1
        assert _same(history.state(stages + 1), applied(states[-1], delta))
        assert history.facts(stages + 1) == {"n": 7}
    assert counts == sorted(counts) and counts.count(stages) >= 5


def test_a_kill_while_truncating_leaves_the_history_as_before_or_after(tmp_path: Path) -> None:
    turn, survived, counts = 0, False, []
    while not survived:
        turn += 1
        history, states = _recorded(tmp_path / str(turn))
        survived = _survives_a_kill(turn, lambda h=history: h.truncate(1))  # type: ignore[misc]
        counts.append(history.stage_count)
        assert history.stage_count in (1, 3)
        for number in range(history.stage_count + 1):
            assert _same(history.state(number), states[number])
        history.truncate(1)
        for stage, seed in ((2, 5), (3, 6)):
            before = history.state(stage - 1)
            assert history.record(before, _delta(before, seed), {}) == stage
            assert _same(history.state(stage), applied(before, _delta(before, seed)))
    assert counts == sorted(counts, reverse=True) and {1, 3} == set(counts)


@pytest.mark.parametrize("stages", [0, 1])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_full_disk_leaves_the_history_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: int, turn: int
) -> None:
    history, states = _recorded(tmp_path / "stages", stages)
    turns = iter(range(1, 1000))
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if next(turns) == min(turn, 2 + (stages == 0)):
            _refuse()
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(InlayError, match="The disk is full"):
            history.record(states[-1], _delta(states[-1], 7), {})
    assert history.stage_count == stages
    assert history.record(states[-1], _delta(states[-1], 7), {}) == stages + 1


def _refuse() -> NoReturn:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
