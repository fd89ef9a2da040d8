"""How much memory there is for images."""

import os
from pathlib import Path

__all__ = ["SHARE_OF_MEMORY", "available_memory"]

SHARE_OF_MEMORY = 0.25
"""The largest part of the memory that decoded images may take; more of them are decoded while they are used.

Parts of a set, such as the images that are not kept out of training, are held beside it: three times its size in all.
"""


def available_memory(proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be used without swapping, or the limit of the process's control groups if that is less.

    Args:
        proc: Where the kernel reports; without it, as on macOS, all of the machine's memory counts as available.
        groups: Where the kernel shows the control groups and their limits.
    """
    return min([_free(proc), *_limits(proc, groups)])


def _free(proc: Path) -> int:
    for line in _lines(proc / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limits(proc: Path, groups: Path) -> list[int]:
    """Limits of the group of this process and of the groups around it; inside a container only the root is seen."""
    own = next((line.removeprefix("0::/") for line in _lines(proc / "self" / "cgroup") if line.startswith("0::/")), "")
    around = [groups.joinpath(*Path(own).parts[:depth]) for depth in range(len(Path(own).parts) + 1)]
    texts = [line for group in around for line in _lines(group / "memory.max")]
    return [int(text) for text in texts if text.isdigit()]


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="ascii").splitlines()
    except OSError:
        return []
