import random
from pathlib import Path

import pytest
import torch

from inlay.run_folder import RunFolder
from resume_child import NEVER, STEPS, Life, differences, launch

WITH_MEMORY = {"ncl": "a queue of features", "dtc": "targets of all images"}


def _drawn_lives(draw: random.Random, stage: int, count: int) -> list[Life]:
    """Kills after seeded steps of a stage, one of them half-way through the checkpoint of that step."""
    steps = sorted(draw.sample(range(1, STEPS[stage]), count))
    during_write = draw.choice(steps)
    return [
        Life(0.0, f"{stage} write {stage:03d}-training.safetensors@{step}")
        if step == during_write
        else Life(draw.choice([0.0, NEVER]), f"{stage} {draw.choice(['gradient', 'step'])} {step}")
        for step in steps
    ]


def _twenty_lives() -> list[Life]:
    """Seeded kills in the order of the run, and one in each place where a kill could do most harm."""
    draw = random.Random(20)
    return [
        Life(NEVER, "0 write inlay.json"),
        *_drawn_lives(draw, 0, 5),
        Life(NEVER, "0 clear"),
        *_drawn_lives(draw, 1, 5),
        Life(NEVER, "1 merge 4"),
        Life(NEVER, "1 write inlay.json"),
        *_drawn_lives(draw, 2, 4),
        Life(NEVER, "2 merge 9"),
        Life(NEVER, "2 write tensors.safetensors"),
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of an undisturbed run, and of one that was killed twenty times."""
    folder = tmp_path_factory.mktemp("runs")
    lives = _twenty_lives()
    assert len(lives) == 20
    launch(folder, {"undisturbed": [Life()], "killed": [*lives, Life()]})
    return folder / "undisturbed", folder / "killed"


@pytest.fixture(scope="module")
def runs_with_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of methods that remember more than weights, undisturbed and killed within the second epoch."""
    folder = tmp_path_factory.mktemp("memory")
    moment = "1 step 6"
    assert STEPS[1] // 3 < 6 < 2 * STEPS[1] // 3
    launch(
        folder,
        {f"{name}-undisturbed": [Life(preset=name)] for name in WITH_MEMORY}
        | {f"{name}-killed": [Life(0.0, moment, preset=name), Life(preset=name)] for name in WITH_MEMORY},
    )
    return folder


@pytest.mark.parametrize("name", WITH_MEMORY)
def test_killed_run_goes_on_with_what_its_method_remembers(runs_with_memory: Path, name: str) -> None:
    runs = runs_with_memory / f"{name}-undisturbed", runs_with_memory / f"{name}-killed"
    assert differences(*runs, stages=2) == []


def test_killed_run_ends_with_the_same_weights(runs: tuple[Path, Path]) -> None:
    assert differences(*runs) == []


def test_stages_of_the_run_differ(runs: tuple[Path, Path]) -> None:
    undisturbed = RunFolder.open(runs[0])
    weights = [undisturbed.read(stage)[0]["network.conv.weight"] for stage in range(len(STEPS))]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])


def test_killed_run_leaves_the_same_files(runs: tuple[Path, Path]) -> None:
    undisturbed, killed = (sorted(path.relative_to(run) for path in run.rglob("*")) for run in runs)
    assert killed == undisturbed
