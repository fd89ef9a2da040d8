"""Where the numbers of a table come from."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

__all__ = ["NO_RUNS", "Recorded", "provenance"]

NO_RUNS = "No runs yet."


class Recorded(Protocol):
    """A run with its file and its whole record."""

    @property
    def file(self) -> str:
        """Name of its file."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """The whole record."""


def provenance(runs: Iterable[Recorded], folder: str = "table1", option: str = "--seeds") -> str:
    """Say where the numbers of a table come from: how many runs, hardware, dates, commits, folder and commands.

    Args:
        runs: The runs.
        folder: Folder of their files.
        option: Option of the commands; those that differ in its value alone are shown as one.
    """
    shown = sorted({run.file: run for run in runs}.values(), key=lambda run: run.file)
    if not shown:
        return NO_RUNS
    dates = sorted({run.facts["date"] for run in shown})
    until = f" to {dates[-1]}" if len(dates) > 1 else ""
    commits = sorted({_short(run.facts["commit"]) for run in shown})
    line = (
        f"{_count(len(shown), 'run')} on {'; '.join(sorted({run.facts['hardware'] for run in shown}))}, "
        f"{dates[0]}{until}, {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}; every number is in "
        f"[benchmarks/results/{folder}](../benchmarks/results/{folder})."
    )
    commands = _commands(shown, option)
    listed = "\n".join(commands)
    return (
        f"{line}\n\n<details><summary>{_count(len(commands), 'command')}</summary>\n\n```\n{listed}\n```\n\n</details>"
    )


def _commands(runs: Iterable[Recorded], option: str) -> list[str]:
    """Return the commands of runs, those that differ in an option alone as one."""
    values: dict[str, list[str]] = {}
    for run in runs:
        command = run.facts["command"]
        found = re.search(rf"(?<={option} )\S+", command)
        key = command if found is None else command.replace(f"{option} {found[0]}", f"{option} {{}}", 1)
        values.setdefault(key, []).append("" if found is None else found[0])
    return [key.replace(f"{option} {{}}", f"{option} {','.join(found)}") for key, found in values.items()]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(commit: str) -> str:
    """Return the beginning of a commit, and whether files had changed since."""
    name, dash, state = commit.partition("-")
    return name[:12] + dash + state
