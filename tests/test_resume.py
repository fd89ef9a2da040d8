import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inlay.engine.checkpoint import JsonObject
from inlay.run_folder import RunFolder
from resume_child import STEPS

Life = tuple[float, str | None]

CHILD = Path(__file__).with_name("resume_child.py")
NEVER = 3600.0
LIVES_PER_PROCESS = 5


def _run(folder: Path, lives: list[Life]) -> None:
    command = [sys.executable, str(CHILD), str(folder), json.dumps(lives)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def _drawn_lives(draw: random.Random, stage: int, count: int) -> list[Life]:
    """Kills after seeded steps of a stage, one of them half-way through the checkpoint of that step."""
    steps = sorted(draw.sample(range(1, STEPS[stage]), count))
    during_write = draw.choice(steps)
    return [
        (0.0, f"{stage} write {stage:03d}-training.safetensors@{step}")
        if step == during_write
        else (draw.choice([0.0, NEVER]), f"{stage} step {step}")
        for step in steps
    ]


def _twenty_lives() -> list[Life]:
    """Seeded kills in the order of the run, and one in each place where a kill could do most harm."""
    draw = random.Random(20)
    return [
        (NEVER, "0 write inlay.json"),
        *_drawn_lives(draw, 0, 5),
        (NEVER, "0 clear"),
        *_drawn_lives(draw, 1, 5),
        (NEVER, "1 merge 4"),
        (NEVER, "1 write inlay.json"),
        *_drawn_lives(draw, 2, 4),
        (NEVER, "2 merge 9"),
        (NEVER, "2 write tensors.safetensors"),
    ]


def _facts_without_time(facts: JsonObject) -> JsonObject:
    return {**facts, "stage": {key: value for key, value in facts["stage"].items() if key != "seconds"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of an undisturbed run, and of one that was killed twenty times."""
    folder = tmp_path_factory.mktemp("runs")
    undisturbed, killed = folder / "undisturbed", folder / "killed"
    _run(undisturbed, [(NEVER, None)])
    lives = _twenty_lives()
    assert len(lives) == 20
    for first in range(0, len(lives), LIVES_PER_PROCESS):
        _run(killed, lives[first : first + LIVES_PER_PROCESS])
    _run(killed, [(NEVER, None)])
    return undisturbed, killed


def test_killed_run_ends_with_the_same_weights(runs: tuple[Path, Path]) -> None:
    undisturbed, killed = (RunFolder.open(path) for path in runs)
    assert undisturbed.stage_count == killed.stage_count == len(STEPS)
    for stage in range(len(STEPS)):
        wanted, wanted_facts = undisturbed.read(stage)
        found, found_facts = killed.read(stage)
        assert found.keys() == wanted.keys()
        assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []
        assert _facts_without_time(found_facts) == _facts_without_time(wanted_facts)


def test_stages_of_the_run_differ(runs: tuple[Path, Path]) -> None:
    undisturbed = RunFolder.open(runs[0])
    weights = [undisturbed.read(stage)[0]["network.conv.weight"] for stage in range(len(STEPS))]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_killed_run_leaves_the_same_files(runs: tuple[Path, Path]) -> None:
    undisturbed, killed = (sorted(path.relative_to(run) for path in run.rglob("*")) for run in runs)
    assert killed == undisturbed
