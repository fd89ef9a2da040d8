import contextlib
import os
import pty
import resource
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import inlay as library

Inlay = Callable[..., CompletedProcess[str]]

SCRIPT = Path(sysconfig.get_path("scripts")) / "inlay"
FILE_SIZE_LIMIT = 100_000


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "120"}


def test_module_is_the_same_program(environment: dict[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "inlay", "info", str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert said.returncode == 2
    assert said.stdout == ""
    assert said.stderr == (
        f"Error: {tmp_path} is not an inlay run folder; make one with `inlay fit DATA --out NAME`.\n"
    )


def test_full_disk_leaves_the_earlier_stage(
    inlay: Inlay,
    fitted: Path,
    pictures: Path,
    content: Callable[[Path], dict[str, str]],
    environment: dict[str, str],
) -> None:
    """A limit on the size of files stands in for a full disk; the weights are larger than it."""
    before = content(fitted)
    arguments = ["discover", str(fitted), str(pictures / "flat"), "--classes", "3"]
    said = subprocess.run(
        [SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_SIZE_LIMIT, FILE_SIZE_LIMIT)),
    )
    assert said.returncode == 2
    assert said.stderr.startswith("Error: ")
    assert "cannot be written (File too large)" in said.stderr
    assert said.stderr.count("\n") == 1
    assert content(fitted) == before
    assert inlay(*arguments).returncode == 0
    assert len(library.load(fitted).stages) == 2


def _read_until(terminal: int, text: str) -> str:
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 4096).decode(errors="replace")
    return shown


def test_ctrl_c_on_a_terminal(
    inlay: Inlay, pictures: Path, quick: tuple[str, ...], environment: dict[str, str], tmp_path: Path
) -> None:
    """The installed script shows a bar, is stopped while it trains, and goes on when the command is repeated."""
    run = tmp_path / "run.inlay"
    options = [*quick, "--set", "base.training.epochs=150"]
    arguments = ["fit", str(pictures / "base"), "--out", str(run), "--backbone", "resnet8", *options]
    terminal, other_end = pty.openpty()
    with subprocess.Popen(
        [SCRIPT, *arguments], stdin=other_end, stdout=other_end, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        os.close(other_end)
        shown = _read_until(terminal, "total ")
        process.send_signal(signal.SIGINT)
        # The kernel ends the reading of a terminal whose other end is closed with an error.
        with contextlib.suppress(OSError):
            _read_until(terminal, "never shown")
        _, stderr = process.communicate()
    os.close(terminal)
    assert "The base stage" in shown
    assert "/300" in shown
    assert process.returncode == 130
    assert stderr.startswith("Stopped the base stage at step ")
    assert stderr.endswith(" of 300; repeat the command to go on from there.\n")
    step = int(stderr.split()[6])
    again = inlay(*arguments)
    assert again.returncode == 0
    assert f"Going on with the base stage at step {step} of 300." in again.stdout.splitlines()
    assert again.stdout.splitlines()[-1] == str(run)
