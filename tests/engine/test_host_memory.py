"""What freed tensors leave is used again, unless the user's environment says otherwise."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import sys
import torch
from inlay.engine.host_memory import keep_freed_memory

told = keep_freed_memory() if "keep" in sys.argv else False
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(20_000_000)
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def told_and_page_faults(*arguments: str, **environment: str) -> tuple[bool, int]:
    """Fill tensors of 80 MB, one after the other, in a process of its own."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**plain, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    told, faults = run.stdout.split()
    return told == "True", int(faults)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is what is told")
def test_pages_of_freed_tensors_are_not_asked_for_again() -> None:
    told, kept = told_and_page_faults("keep")
    _, usual = told_and_page_faults()
    assert told
    assert usual > 5 * kept


def test_what_the_environment_says_stays() -> None:
    told, _ = told_and_page_faults("keep", MALLOC_TRIM_THRESHOLD_="131072")
    assert not told
