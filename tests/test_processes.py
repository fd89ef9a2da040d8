"""Two processes do what one does."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from stages_child import STAGES

CHILD = Path(__file__).with_name("stages_child.py")
GROUP = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What one process alone and the two of a group ended with."""
    folder = tmp_path_factory.mktemp("processes")
    for name, launcher in (("alone", []), ("group", GROUP)):
        command = [sys.executable, *launcher, str(CHILD), str(folder / name)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CHILD.parent)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return {name: torch.load(folder / name) for name in ("alone.0", "group.0", "group.1")}


def test_the_group_had_two_processes(found: dict[str, dict[str, Any]]) -> None:
    assert [found[name]["size"] for name in ("alone.0", "group.0", "group.1")] == [1, 2, 2]


@pytest.mark.parametrize("stage", ["base", *STAGES])
def test_two_processes_end_with_the_weights_of_one(found: dict[str, dict[str, Any]], stage: str) -> None:
    alone = _of_stage(found["alone.0"]["found"], stage)
    assert any(tensor.dtype == torch.float64 and tensor.abs().max() > 0.1 for tensor in alone.values())
    for name in ("group.0", "group.1"):
        group = _of_stage(found[name]["found"], stage)
        assert group.keys() == alone.keys()
        for key, tensor in alone.items():
            difference = (group[key].double() - tensor.double()).abs().max()
            assert difference < 1e-9, f"{key} of {name} differs by {difference:.1e}"


def _of_stage(found: dict[str, Tensor], stage: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in found.items() if key.startswith(f"{stage}/")}
