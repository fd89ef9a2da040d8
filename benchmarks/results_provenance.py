"""Where the numbers of a table come from."""

import re
from collections.abc import Iterable

from benchmarks.results_runs import Run

__all__ = ["provenance"]


def provenance(runs: Iterable[Run]) -> str:
    """Say where the numbers of a table come from: how many runs, hardware, dates, commits, folder and commands."""
    shown = sorted({run.file: run for run in runs}.values(), key=lambda run: run.file)
    if not shown:
        return "No runs yet."
    dates = sorted({run.facts["date"] for run in shown})
    until = f" to {dates[-1]}" if len(dates) > 1 else ""
    commits = sorted({_short(run.facts["commit"]) for run in shown})
    line = (
        f"{_count(len(shown), 'run')} on {'; '.join(sorted({run.facts['hardware'] for run in shown}))}, "
        f"{dates[0]}{until}, {'commit' if len(commits) == 1 else 'commits'} {', '.join(commits)}; every number is in "
        f"[benchmarks/results/table1](../benchmarks/results/table1)."
    )
    commands = _commands(shown)
    listed = "\n".join(commands)
    return (
        f"{line}\n\n<details><summary>{_count(len(commands), 'command')}</summary>\n\n```\n{listed}\n```\n\n</details>"
    )


def _commands(runs: Iterable[Run]) -> list[str]:
    """Return the commands of runs, those that differ in their seeds alone as one."""
    seeds: dict[str, list[str]] = {}
    for run in runs:
        command = run.facts["command"]
        found = re.search(r"(?<=--seeds )\S+", command)
        key = command if found is None else command.replace(f"--seeds {found[0]}", "--seeds {}", 1)
        seeds.setdefault(key, []).append("" if found is None else found[0])
    return [key.replace("--seeds {}", f"--seeds {','.join(found)}") for key, found in seeds.items()]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _short(commit: str) -> str:
    """Return the beginning of a commit, and whether files had changed since."""
    name, dash, state = commit.partition("-")
    return name[:12] + dash + state
