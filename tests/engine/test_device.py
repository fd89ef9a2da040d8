import pytest
import torch

from inlay.engine.device import find_device
from inlay.engine.world import World
from inlay.errors import InlayError


def test_cpu_is_always_there() -> None:
    assert find_device("cpu") == torch.device("cpu")


def test_auto_takes_a_gpu_if_there_is_one() -> None:
    assert find_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cudax", "meta", "", "cpu:x"])
def test_unknown_names_are_refused(name: str) -> None:
    with pytest.raises(InlayError, match=r"There is no device .*; write auto, cpu or cuda"):
        find_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="speaks of a machine without a GPU")
def test_no_gpu_is_said() -> None:
    with pytest.raises(InlayError, match="No CUDA device is available; write --device cpu"):
        find_device("cuda:1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    with pytest.raises(InlayError, match="the last one is cuda:"):
        find_device(f"cuda:{torch.cuda.device_count()}")


class Machine:
    """A machine with CUDA devices, as one of its processes under torchrun sees it."""

    def __init__(self, devices: int, local_rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
        monkeypatch.setattr(World, "current", lambda: World(local_rank, 4, local_rank, parallel=True))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_process_has_a_device_of_its_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(4, 2, monkeypatch)
    assert find_device(name) == torch.device("cuda:2")
    assert find_device("cpu") == torch.device("cpu")


def test_a_process_may_be_shown_its_own_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(1, 2, monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert find_device("cuda") == torch.device("cuda:0")


def test_processes_without_a_device_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    Machine(2, 3, monkeypatch)
    with pytest.raises(InlayError, match=r"has 2 CUDA device\(s\); start at most that many processes"):
        find_device("auto")
    with pytest.raises(InlayError, match="write --device cuda instead of 'cuda:1'"):
        find_device("cuda:1")
