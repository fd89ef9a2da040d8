import pytest
import torch

from inlay.engine.device import find_device
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
