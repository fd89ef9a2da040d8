"""The commands of the guide to own images, and how they are run."""

import contextlib
import glob
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

import inlay
from inlay.cli import main

__all__ = ["COMMANDS", "GUIDE", "LEARN", "Walk", "commands_of", "finished_in"]

GUIDE = Path(__file__).parents[2] / "docs" / "own-images.md"

COMMANDS = (
    "inlay doctor photos/",
    "inlay fit photos/labelled --out shop.inlay",
    "inlay discover shop.inlay photos/2026-10",
    "inlay review shop.inlay",
    "inlay discover shop.inlay photos/2026-11",
    "inlay predict shop.inlay new/*.jpg --csv out.csv",
    "inlay export shop.inlay --onnx shop.onnx",
    "inlay rollback shop.inlay --to 1",
)
LEARN = "inlay learn shop.inlay sorted/"


def commands_of(page: str) -> list[str]:
    """The commands in the code blocks of a page that are marked with "walk", in order."""
    blocks = re.findall(r"^```sh walk\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


@dataclass
class Walk:
    """Commands that were run one after the other in a folder.

    Attributes:
        folder: The folder.
        options: Options that are added to the commands of a verb, such as fewer epochs.
        said: What each command said.
        registries: The class registry after each command, once there is a run.
    """

    folder: Path
    options: dict[str, Sequence[str]] = field(default_factory=dict)
    said: dict[str, CompletedProcess[str]] = field(default_factory=dict)
    registries: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, command: str) -> CompletedProcess[str]:
        """Run a command as a shell would, and keep what it said."""
        verb = command.split()[1]
        words = [*shlex.split(command), *self.options.get(verb, ())]
        with contextlib.chdir(self.folder):
            named = [name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])]
            self.said[command] = _reviewed(named) if verb == "review" else _finished(named)
            if Path("shop.inlay").is_dir():
                self.registries[command] = inlay.load("shop.inlay").classes.to_json()
        return self.said[command]


def finished_in(words: Sequence[str], folder: Path) -> CompletedProcess[str]:
    """Run the command line in this process, in a folder."""
    with contextlib.chdir(folder):
        return _finished(words)


def _finished(words: Sequence[str]) -> CompletedProcess[str]:
    """Run the command line in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as stop,
    ):
        patch.setattr(sys, "argv", list(words))
        main()
    code = stop.value.code
    assert isinstance(code, int)
    return CompletedProcess(list(words), code, stdout.getvalue(), stderr.getvalue())


def _reviewed(words: Sequence[str]) -> CompletedProcess[str]:
    """Start the page in a process of its own, ask for it, and stop it with Ctrl-C."""
    environment = {**os.environ, "BROWSER": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        lines: list[str] = []
        # The stream ends if the page does not start.
        for line in process.stdout:
            lines.append(line)
            if (address := re.search(r"http://127\.0\.0\.1:\S+/", line)) is not None:
                with urllib.request.urlopen(address[0]) as answer:
                    lines.append(answer.read().decode())
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.communicate(timeout=60)
    return CompletedProcess(command, process.returncode, "".join(lines) + rest, errors)
