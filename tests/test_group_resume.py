import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inlay import branches
from inlay.knowledge import Knowledge
from inlay.run_folder import RunFolder
from resume_child import NEVER, STEPS, Life, differences, launch

SEEDS = (5, 7)


def _killed_lives(seed: int) -> list[Life]:
    """Kills of a group of two at seeded moments of every stage, by either process."""
    draw = random.Random(seed)
    written, cleared = draw.randrange(len(STEPS)), draw.randrange(len(STEPS) - 1)
    first = draw.randrange(2)
    lives = []
    for stage, steps in enumerate(STEPS):
        early, middle, late = sorted(draw.sample(range(2, steps), 3))
        rank = (first + stage) % 2
        lives.append(Life(0.0, f"{stage} gradient {early}", 2, rank))
        if stage == written:
            lives.append(Life(0.0, f"{stage} write {stage:03d}-training.safetensors@{middle}", 2))
        lives.append(Life(draw.choice([0.0, NEVER]), f"{stage} step {late}", 2, 1 - rank, others="asked"))
        if stage == cleared:
            lives.append(Life(NEVER, f"{stage} clear", 2))
    return lives


def _changing_lives() -> list[Life]:
    """Two processes and one by turns.

    The group takes the first steps of the base stage, which are chaotic: there a difference in the seventh digit of a
    weight grows into one in the second, in a single process too. So it does in discovery stages where prototypes are
    compared in the metric of known classes, which magnifies small differences.
    """
    lives = [Life(0.0, "0 step 12", 2), Life(0.0, "1 step 7"), Life(0.0, "2 step 8", 2, 1), Life()]
    return [life._replace(metric="plain") for life in lives]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the runs of groups: undisturbed ones, killed ones, and one of a changing number of processes."""
    folder = tmp_path_factory.mktemp("groups")
    to_the_end = Life(processes=2)
    killed = {f"killed-{seed}": [*_killed_lives(seed), to_the_end] for seed in SEEDS}
    plain = {"plain": [to_the_end._replace(metric="plain")], "changing": _changing_lives()}
    launch(folder, {"undisturbed": [to_the_end], **killed, **plain})
    return folder


def _files(run: Path) -> list[Path]:
    return sorted(path.relative_to(run) for path in run.rglob("*"))


def _network(run: Path, stage: int) -> Tensor:
    """All numbers of the network after a stage, folded, as the base stage does not fold it."""
    known = Knowledge.from_files(*RunFolder.open(run).read(stage), torch.device("cpu"))
    folded = branches.fold(known.network, known.form.example())
    return torch.cat([tensor.flatten() for tensor in folded.state_dict().values()])


def _change(run: Path, stage: int) -> Tensor:
    """What a stage has done to the network; the base stage has made it."""
    after = _network(run, stage)
    return after if stage == 0 else after - _network(run, stage - 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_group_ends_with_the_same_weights(folder: Path, seed: int) -> None:
    assert differences(folder / "undisturbed", folder / f"killed-{seed}") == []


@pytest.mark.parametrize("seed", SEEDS)
def test_killed_group_leaves_the_same_files(folder: Path, seed: int) -> None:
    assert _files(folder / f"killed-{seed}") == _files(folder / "undisturbed")


# A discovery stage changes the network by a thousandth of its numbers, so rounding counts a thousand times as much.
# Each tolerance is far above what rounding does, and a tenth or less of what happens if the momentum is not restored.
@pytest.mark.parametrize(("stage", "tolerance"), [(0, 1e-4), (1, 0.02), (2, 0.02)])
def test_another_number_of_processes_goes_on_within_rounding(folder: Path, stage: int, tolerance: float) -> None:
    wanted, found = (_change(folder / name, stage) for name in ("plain", "changing"))
    assert (found - wanted).norm() < tolerance * wanted.norm()


def test_process_that_looks_while_another_begins_the_run_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = RunFolder.exists

    def look_and_be_overtaken(path: Path) -> bool:
        found = look(path)
        monkeypatch.setattr(RunFolder, "exists", staticmethod(look))
        RunFolder.create(path)
        return found

    monkeypatch.setattr(RunFolder, "exists", staticmethod(look_and_be_overtaken))
    RunFolder(tmp_path).refuse_occupied()
    assert RunFolder.exists(tmp_path)
