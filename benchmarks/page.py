"""Pages of the docs whose tables are made from files of results."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["between", "linked", "measured_files", "write_page"]


def write_page(description: str | None, page: Path, render: Callable[[str], str]) -> None:
    """Be a command that writes a page anew, or with --check says whether it is up to date.

    Args:
        description: What the command does, for its help.
        page: The page.
        render: From the text of the page to what it should be.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if the tables are not up to date")
    options = parser.parse_args()
    before = page.read_text(encoding="utf-8")
    after = render(before)
    if options.check:
        sys.exit(before != after)
    page.write_text(after, encoding="utf-8")


def measured_files(folder: Path, kind: str) -> dict[str, Any]:
    """Return the records of one kind of benchmark in a folder, by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob(f"{kind}-*.json"))}


def between(text: str, begin: str, end: str, parts: Sequence[str]) -> str:
    """Return a page with everything between two marks replaced by some parts."""
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return "\n\n".join([f"{head}{begin}", *parts, f"{end}{tail}"])


def linked(file: str) -> str:
    """Say where every number is."""
    return f"every number is in [benchmarks/results/{file}](../benchmarks/results/{file})."
