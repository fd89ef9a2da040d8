from pathlib import Path

import pytest

from inlay.data.memory import available_memory

KIB, MIB = 1024, 1024**2


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A machine with 6,000 KiB of free memory, and a process two groups deep."""
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal:    9000 kB\nMemFree:   10 kB\nMemAvailable:    6000 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text("12:cpu:/old\n0::/jobs/mine\n")
    (tmp_path / "groups" / "jobs" / "mine").mkdir(parents=True)
    return tmp_path


def available(machine: Path) -> int:
    return available_memory(machine / "proc", machine / "groups")


def test_free_memory_without_limits(machine: Path) -> None:
    assert available(machine) == 6000 * KIB
    (machine / "groups" / "jobs" / "memory.max").write_text("max\n")
    assert available(machine) == 6000 * KIB


@pytest.mark.parametrize("group", [".", "jobs", "jobs/mine"])
def test_a_limit_of_any_group_around_counts_if_it_is_smaller(machine: Path, group: str) -> None:
    limit = machine / "groups" / group / "memory.max"
    limit.write_text(f"{5 * MIB}\n")
    assert available(machine) == 5 * MIB
    limit.write_text(f"{500 * MIB}\n")
    assert available(machine) == 6000 * KIB


def test_other_groups_do_not_count(machine: Path) -> None:
    (machine / "groups" / "jobs" / "other").mkdir()
    (machine / "groups" / "jobs" / "other" / "memory.max").write_text("1\n")
    assert available(machine) == 6000 * KIB


def test_where_the_kernel_reports_nothing_all_memory_counts(tmp_path: Path) -> None:
    assert available(tmp_path) >= 64 * MIB
    assert available_memory() <= available(tmp_path)
