import random
from pathlib import Path

import pytest

from resume_child import NEVER, STEPS, Life, differences, launch


def _killed_lives(seed: int) -> list[Life]:
    """Kills at seeded steps of every stage, with a checkpoint of an earlier step; one life does not stream."""
    draw = random.Random(seed)
    decoding = draw.randrange(len(STEPS))
    lives = []
    for stage, steps in enumerate(STEPS):
        early, late = sorted(draw.sample(range(2, steps), 2))
        lives.append(Life(0.0, f"{stage} gradient {early}", images="streamed"))
        other = Life(draw.choice([0.0, NEVER]), f"{stage} step {late}", images="streamed")
        lives.append(other._replace(images="decoded") if stage == decoding else other)
    return lives


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of runs on the same image files: two undisturbed ones, and one that was killed."""
    folder = tmp_path_factory.mktemp("streamed")
    streamed, decoded = Life(images="streamed"), Life(images="decoded")
    launch(folder, {"decoded": [decoded], "streamed": [streamed], "killed": [*_killed_lives(5), streamed]})
    return folder


def test_streamed_run_ends_as_the_run_on_images_in_memory(folder: Path) -> None:
    assert differences(folder / "decoded", folder / "streamed") == []


def test_killed_streamed_run_ends_as_the_undisturbed_one(folder: Path) -> None:
    assert differences(folder / "streamed", folder / "killed") == []
