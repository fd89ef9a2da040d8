import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

import inlay as library
from inlay.engine.batch import Batch
from inlay.engine.loop import Loop
from inlay.run_folder import RunFolder

Inlay = Callable[..., CompletedProcess[str]]
Content = Callable[[Path], dict[str, str]]


@pytest.fixture
def stopped(inlay: Inlay) -> Inlay:
    """Run a command and press Ctrl-C at the end of its first step of training."""
    take_step = Loop.take_step

    def take_step_and_press(loop: Loop, batch: Batch) -> None:
        take_step(loop, batch)
        signal.raise_signal(signal.SIGINT)

    def stopped(*arguments: object) -> CompletedProcess[str]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Loop, "take_step", take_step_and_press)
            return inlay(*arguments)

    return stopped


def _finished_files(content: dict[str, str]) -> dict[str, str]:
    return {name: checksum for name, checksum in content.items() if not name.startswith("progress")}


def test_discovery_is_stopped_and_goes_on_to_the_same_end(
    inlay: Inlay, stopped: Inlay, discovering: tuple[Path, object], fitted: Path, pictures: Path, content: Content
) -> None:
    before = content(fitted)
    arguments = ("discover", fitted, pictures / "new", "--classes", 3)
    said = stopped(*arguments)
    assert said.returncode == 130
    assert said.stderr == "Stopped stage 1 at step 1 of 6; repeat the command to go on from there.\n"
    assert _finished_files(content(fitted)) == before
    again = inlay(*arguments)
    assert again.returncode == 0
    assert "Going on with stage 1 at step 1 of 6." in again.stdout.splitlines()
    assert again.stdout.splitlines()[-1] == str(fitted)
    found, wanted = RunFolder.open(fitted).read()[0], RunFolder.open(discovering[0]).read()[0]
    assert [name for name in wanted if not torch.equal(found[name], wanted[name])] == []


def test_stopped_fit_goes_on(
    inlay: Inlay, stopped: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("fit", pictures / "base", "--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    assert stopped(*arguments).returncode == 130
    said = inlay(*arguments)
    assert said.returncode == 0
    assert "Going on with the base stage at step 1 of 4." in said.stdout.splitlines()


def test_unfinished_fit_has_nothing_to_show(
    stopped: Inlay, inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    run = tmp_path / "run.inlay"
    stopped("fit", pictures / "base", "--out", run, "--backbone", "resnet8", *quick)
    said = inlay("info", run)
    assert said.returncode == 2
    assert said.stderr == f"Error: {run} has no finished stage yet; repeat the `inlay fit` that began it.\n"


def test_progress_of_other_settings_is_kept_until_restart(
    inlay: Inlay, stopped: Inlay, refused: Callable[..., str], fitted: Path, pictures: Path
) -> None:
    stopped("discover", fitted, pictures / "flat", "--classes", 3)
    other = ("discover", fitted, pictures / "flat", "--classes", 2)
    assert "pass --restart to drop it" in refused(fitted, *other)
    said = inlay(*other, "--restart")
    assert said.returncode == 0
    assert "Going on" not in said.stdout
    assert len(library.load(fitted).stages[1].class_names) == 2


def test_restart_begins_a_stopped_stage_anew(
    inlay: Inlay, stopped: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("fit", pictures / "base", "--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    stopped(*arguments)
    said = inlay(*arguments, "--restart")
    assert said.returncode == 0
    assert "Going on" not in said.stdout


def test_a_stopped_command_without_progress_is_not_said_to_have_kept_some(
    inlay: Inlay, discovered: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def press(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(library.Learner, "predict", press)
    said = inlay("predict", discovered, pictures / "flat")
    assert said.returncode == 130
    assert said.stderr == (
        "Stopped; repeat the command. A stage that was under way goes on from its last checkpoint.\n"
    )


def test_stopped_demonstration_says_how_to_go_on(stopped: Inlay, tmp_path: Path) -> None:
    folder = tmp_path / "my demo"
    said = stopped("demo", "--out", folder, "--seed", 1, "--no-baselines")
    again = f"inlay demo --out '{folder}' --seed 1 --no-baselines"
    assert said.returncode == 130
    assert said.stderr == f"Stopped the demonstration; go on with `{again}`.\n"
