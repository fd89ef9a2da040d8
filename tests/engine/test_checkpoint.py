import errno
import json
import math
import multiprocessing
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from inlay.engine.checkpoint import (
    JsonObject,
    read_json,
    read_tensors,
    restore_training_state,
    training_state,
    write_json,
    write_tensors,
)
from inlay.errors import InlayError

Optimizing = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizing] = {
    "sgd with momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "sgd without momentum": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "two groups": lambda p: torch.optim.AdamW(_two_groups(p), lr=0.01),
}


def _two_groups(parameters: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [{"params": parameters[:3]}, {"params": parameters[3:], "lr": 0.002}]


def _network(seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Conv2d(4, 5, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
    return network.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _train(modules: dict[str, nn.Module], optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(6, 3, 5, 5, generator=generator).to(memory_format=torch.channels_last)
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        optimizer.zero_grad()
        modules["head"](modules["net"](images)).square().mean().backward()
        optimizer.step()


def _training(optimizing: Optimizing, seed: int) -> tuple[dict[str, nn.Module], torch.optim.Optimizer]:
    modules: dict[str, nn.Module] = {"net": _network(seed), "head": nn.Linear(5, 2)}
    nn.init.constant_(modules["head"].get_parameter("weight"), 0.1 * seed)
    nn.init.zeros_(modules["head"].get_parameter("bias"))
    return modules, optimizing([p for module in modules.values() for p in module.parameters()])


def _layout(tensor: Tensor) -> list[int]:
    """Strides that matter: along an axis of size 1 any stride means the same."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def _layouts(optimizer: torch.optim.Optimizer) -> list[dict[str, list[int]]]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [
        {key: _layout(value) for key, value in optimizer.state[p].items() if isinstance(value, Tensor)}
        for p in parameters
    ]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_restored_training_goes_on_bit_for_bit(kind: str, tmp_path: Path) -> None:
    straight, straight_optimizer = _training(OPTIMIZERS[kind], seed=1)
    _train(straight, straight_optimizer, range(3))
    write_tensors(tmp_path / "state", *training_state(straight, straight_optimizer))
    layouts = _layouts(straight_optimizer)
    _train(straight, straight_optimizer, range(3, 6))

    resumed, optimizer = _training(OPTIMIZERS[kind], seed=2)
    before = [p for group in optimizer.param_groups for p in group["params"]]
    restore_training_state(resumed, optimizer, *read_tensors(tmp_path / "state"))
    after = [p for group in optimizer.param_groups for p in group["params"]]
    assert all(left is right for left, right in zip(before, after, strict=True))
    assert _layouts(optimizer) == layouts
    _train(resumed, optimizer, range(3, 6))

    for name in ("net", "head"):
        wanted, found = straight[name].state_dict(), resumed[name].state_dict()
        assert all(torch.equal(found[key], wanted[key]) for key in wanted)
        assert all(found[key].stride() == wanted[key].stride() for key in wanted)
    wanted_state, _ = training_state(straight, straight_optimizer)
    found_state, _ = training_state(resumed, optimizer)
    assert found_state.keys() == wanted_state.keys()
    assert all(torch.equal(found_state[key], wanted_state[key]) for key in wanted_state)
    rates = [group["lr"] for group in straight_optimizer.param_groups]
    assert [group["lr"] for group in optimizer.param_groups] == rates


def test_state_names_and_numbers() -> None:
    modules: dict[str, nn.Module] = {"net": nn.Sequential(nn.BatchNorm1d(2))}
    optimizer = torch.optim.Adagrad(modules["net"].parameters(), lr=0.5)
    first = next(modules["net"].parameters())
    optimizer.state[first]["seen"] = 7
    optimizer.state[first]["nothing"] = None
    tensors, facts = training_state(modules, optimizer)
    buffers = ["running_mean", "running_var", "num_batches_tracked"]
    assert set(tensors) == {f"module.net.0.{key}" for key in ["weight", "bias", *buffers]} | {
        f"optimizer.{index}.{key}" for index in (0, 1) for key in ("step", "sum")
    }
    assert facts == {"learning_rates": [0.5], "optimizer": {"0": {"seen": 7, "nothing": None}, "1": {}}}
    optimizer.state[first]["seen"] = 8
    restore_training_state(modules, optimizer, tensors, json.loads(json.dumps(facts)))
    assert optimizer.state[first]["seen"] == 7
    assert optimizer.state[first]["nothing"] is None


def test_parameters_without_state_stay_without() -> None:
    modules: dict[str, nn.Module] = {"net": nn.Linear(2, 2)}
    optimizer = torch.optim.SGD(modules["net"].parameters(), lr=0.1, momentum=0.9)
    modules["net"].get_parameter("weight").grad = torch.ones(2, 2)
    optimizer.step()
    tensors, facts = training_state(modules, optimizer)
    assert [name for name in tensors if name.startswith("optimizer")] == ["optimizer.0.momentum_buffer"]
    modules["net"].get_parameter("bias").grad = torch.ones(2)
    optimizer.step()
    restore_training_state(modules, optimizer, tensors, facts)
    assert set(optimizer.state) == {modules["net"].get_parameter("weight")}


@pytest.mark.parametrize(
    "other",
    [
        {"net": nn.Linear(2, 3)},
        {"net": nn.Linear(2, 2, bias=False)},
        {"net": nn.Linear(2, 2).double()},
        {"other": nn.Linear(2, 2)},
        {"net": nn.Linear(2, 2), "more": nn.Linear(1, 1)},
    ],
)
def test_state_of_another_network_changes_nothing(other: dict[str, nn.Module]) -> None:
    modules: dict[str, nn.Module] = {"net": nn.Linear(2, 2)}
    state = training_state(modules, torch.optim.SGD(modules["net"].parameters(), lr=0.1))
    optimizer = torch.optim.SGD([p for m in other.values() for p in m.parameters()], lr=0.3)
    before = {key: value.clone() for key, value in training_state(other, optimizer)[0].items()}
    with pytest.raises(InlayError, match="that of another network or optimiser; repeat the command"):
        restore_training_state(other, optimizer, *state)
    after = training_state(other, optimizer)[0]
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert optimizer.param_groups[0]["lr"] == 0.3


def test_state_of_another_optimizer_is_refused() -> None:
    net = nn.Linear(2, 2)
    state = training_state({"net": net}, torch.optim.SGD(net.parameters(), lr=0.1))
    groups = [{"params": [parameter]} for parameter in net.parameters()]
    with pytest.raises(InlayError, match="another network or optimiser"):
        restore_training_state({"net": net}, torch.optim.SGD(groups, lr=0.1), *state)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = training_state({"net": net}, optimizer)
    with pytest.raises(InlayError, match="another network or optimiser"):
        restore_training_state({"net": net}, torch.optim.SGD([net.weight], lr=0.1), *state)


def test_module_names_have_no_dot() -> None:
    net = nn.Linear(1, 1)
    with pytest.raises(ValueError, match=r"no dot, not 'a\.b'"):
        training_state({"a.b": net}, torch.optim.SGD(net.parameters(), lr=0.1))


def test_tensors_of_every_layout_come_back(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(2, 3, 2, 2)
    tensors = {
        "whole": base,
        "same memory": base,
        "part": base[:, 1],
        "channels last": base.to(memory_format=torch.channels_last),
        "transposed": base.reshape(6, 4).t(),
        "expanded": torch.ones(1).expand(5),
        "scalar": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "flags": torch.tensor([True, False]),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "parameter": nn.Parameter(torch.ones(2)),
    }
    facts: JsonObject = {"b": [1, 2.5, None], "a": {"ä": "ö", "yes": True}}
    write_tensors(tmp_path / "file", tensors, facts)
    found, found_facts = read_tensors(tmp_path / "file")
    assert found_facts == facts
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor), name
        assert found[name].dtype == tensor.dtype
        assert found[name].is_contiguous()


def test_same_content_gives_same_bytes(tmp_path: Path) -> None:
    write_tensors(tmp_path / "one", {"a": torch.ones(2), "b": torch.zeros(1)}, {"x": 1, "y": 2})
    write_tensors(tmp_path / "two", {"b": torch.zeros(1), "a": torch.ones(2)}, {"y": 2, "x": 1})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    assert b'{\\"x\\":1,\\"y\\":2}' in (tmp_path / "one").read_bytes()


def test_read_tensors_are_apart_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.ones(1000)}, {})
    tensors, _ = read_tensors(path)
    with open(path, "r+b") as file:
        file.truncate(0)
    assert torch.equal(tensors["a"], torch.ones(1000))


def test_damaged_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.ones(100)}, {"x": 1})
    whole = path.read_bytes()
    for size in (0, 4, 20, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(InlayError, match="file is damaged or was not written by inlay; restore it"):
            read_tensors(path)
    for metadata in (None, {"facts": "[1]"}, {"facts": "{"}, {"facts": '{"x": NaN}'}):
        save_file({"a": torch.ones(1)}, path, metadata=metadata)
        with pytest.raises(InlayError, match="file is damaged or was not written by inlay"):
            read_tensors(path)


def test_missing_files_are_named(tmp_path: Path) -> None:
    for read in (read_tensors, read_json):
        with pytest.raises(InlayError, match=r"gone cannot be read \(No such file.*\); give a file that inlay"):
            read(tmp_path / "gone")
        with pytest.raises(InlayError, match=f"{tmp_path.name} "):
            read(tmp_path)


def test_json_comes_back(tmp_path: Path) -> None:
    value = {"z": [1, {"a": 0.1}], "ä": None}
    write_json(tmp_path / "file", value)
    assert read_json(tmp_path / "file") == value
    assert (tmp_path / "file").read_text() == json.dumps(value, indent=1) + "\n"


@pytest.mark.parametrize("text", ["", "{", '{"a": NaN}', "[Infinity]", '"\xff"'])
def test_damaged_json_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InlayError, match="file is damaged or was not written by inlay; restore it from a copy"):
        read_json(path)


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_must_be_finite(tmp_path: Path, number: float) -> None:
    with pytest.raises(ValueError):
        write_json(tmp_path / "file", {"a": [number]})
    with pytest.raises(ValueError):
        write_tensors(tmp_path / "file", {}, {"a": number})
    assert not list(tmp_path.iterdir())


def _write_something(path: Path, size: int) -> None:
    write_tensors(path, {"a": torch.full((size,), 2.0)}, {})


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.ones(3)}, {})

    def refuse(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(InlayError, match=r"^The disk is full: .*file was not written; free some space"):
        _write_something(path, 3)
    monkeypatch.undo()
    assert torch.equal(read_tensors(path)[0]["a"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


def _write_beyond_the_limit(path: Path, answer: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    try:
        _write_something(path, 1000)
    except InlayError as error:
        answer.send(str(error))


def test_half_written_file_is_removed_when_the_system_stops_the_writing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.ones(3)}, {})
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    writer = fork.Process(target=_write_beyond_the_limit, args=(path, sender))
    writer.start()
    writer.join()
    assert receiver.poll()
    assert receiver.recv() == f"{path} cannot be written (File too large); choose a folder that you can write to."
    assert torch.equal(read_tensors(path)[0]["a"], torch.ones(3))
    assert list(tmp_path.iterdir()) == [path]


def test_interruption_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_json(tmp_path / "file", 1)
    assert not list(tmp_path.iterdir())


def test_leftovers_of_the_same_file_alone_are_removed(tmp_path: Path) -> None:
    own, others = (
        tmp_path / ".a[1].0123abcd.tmp",
        [tmp_path / ".a[1].b.0123abcd.tmp", tmp_path / ".a1.0123abcd.tmp"],
    )
    for leftover in (own, *others):
        leftover.write_text("half")
    write_json(tmp_path / "a[1]", 1)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "a[1]", *others])


def test_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"file cannot be written \(No such file or directory\); choose a folder"):
        write_json(tmp_path / "gone" / "file", 1)


def test_content_reaches_the_disk_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace

    def logged_fsync(descriptor: int) -> None:
        target = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        whole = target.is_dir() or target.stat().st_size == len("1\n")
        calls.append(f"{'folder' if target.is_dir() else 'file'} {'whole' if whole else 'part'}")
        fsync(descriptor)

    def logged_replace(source: Path, target: Path) -> None:
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", logged_fsync)
    monkeypatch.setattr(os, "replace", logged_replace)
    write_json(tmp_path / "file", 1)
    assert calls == ["file whole", "rename", "folder whole"]
