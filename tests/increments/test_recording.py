"""Steps of all stages of Table 2 can be compiled as one graph and recorded, with the recipes of the benchmark."""

import copy
import dataclasses
from typing import Any

import pytest
import torch

from increment_cases import course
from inlay.bench.table2 import Choice, Run, base_name, table2
from inlay.increments.course import Course, Standing, next_stage
from inlay.pipeline import Workshop
from step_watch import Seen, check_recordable, check_recorded, check_whole, looking

pytestmark = pytest.mark.usefixtures("compiled_anew")

RUNS = list({(run.table, run.row): run for table in ("A", "B") for run in table2(Choice(table))}.values())
BASES = list({base_name(run): run for run in reversed(RUNS) if run.table == "A"}.values())
_SMALL = {"dytox+": "dytox-tiny"}
_BASES_LEARNED: dict[str, Standing] = {}


def _label(run: Run) -> str:
    return f"{run.table} {run.row}"


def _short(run: Run) -> Run:
    """The run for few small images; what was published with a warm-up or with tuning has it still."""
    recipe = run.system.recipe
    short: dict[str, Any] = {"backbone": _SMALL.get(run.method, "resnet8")}
    for part in ("base", "stage", "tuning"):
        training = getattr(recipe, part)
        short[f"{part}.epochs"] = min(2, training.epochs)
        short[f"{part}.batch"] = 16
        short[f"{part}.warm_up"] = 0.5 if training.warm_up else 0.0
    if recipe.memory.share(1):
        short |= {"memory.per_class": 3, "memory.total": 0}
    return dataclasses.replace(run, changes=short)


def _images() -> Course:
    return course((3, 2, 2), images=12)


def _learned_base(run: Run, device: str = "cpu") -> Standing:
    """What a run knows after its base stage, which those that share it learn once; nothing was looked at since."""
    name = f"{device} {run.table} {run.method} {base_name(run)}"
    if name not in _BASES_LEARNED:
        _BASES_LEARNED[name] = next_stage(run.system, _images(), None, 0, Workshop(torch.device(device)))
    return copy.deepcopy(_BASES_LEARNED[name])


@pytest.mark.parametrize("run", RUNS, ids=_label)
def test_stages_of_every_system_and_control_can_be_recorded(run: Run) -> None:
    short, watched = _short(run), looking(check_recordable)
    known = _learned_base(short)
    for _ in range(2):
        known = next_stage(short.system, _images(), known, 0, watched)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("run", RUNS, ids=_label)
def test_stages_are_recorded_on_a_gpu(run: Run) -> None:
    short, watched = _short(run), looking(check_recorded, device="cuda:0")
    known = _learned_base(short, "cuda:0")
    for _ in range(2):
        known = next_stage(short.system, _images(), known, 0, watched)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("run", BASES, ids=_label)
def test_every_base_stage_is_recorded_on_a_gpu(run: Run) -> None:
    with pytest.raises(Seen):
        next_stage(_short(run).system, _images(), None, 0, looking(check_recorded, runs=False, device="cuda:0"))


@pytest.mark.parametrize("run", BASES, ids=_label)
def test_every_base_stage_is_one_graph_that_can_be_recorded(run: Run) -> None:
    """Later stages are recorded and not compiled."""
    for look in (check_recordable, check_whole):
        with pytest.raises(Seen):
            next_stage(_short(run).system, _images(), None, 0, looking(look, runs=False))
