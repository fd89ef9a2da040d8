import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from subprocess import CompletedProcess

import pytest

from inlay.data.memory import SHARE_OF_MEMORY

SLOW_TO_IMPORT = ("sklearn", "scipy", "pandas", "matplotlib", "onnx", "onnxruntime", "fastapi", "timm", "transformers")


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    program = f"import sys, inlay.cli; print([name for name in {SLOW_TO_IMPORT} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_the_version_is_told(inlay: Callable[..., CompletedProcess[str]]) -> None:
    said = inlay("--version")
    assert (said.returncode, said.stdout) == (0, f"inlay {version('inlay')}\n")


def test_commands_are_listed_as_they_are_needed(inlay: Callable[..., CompletedProcess[str]]) -> None:
    listed = re.findall(r"^│ ([a-z]+) ", inlay("--help").stdout, flags=re.MULTILINE)
    assert listed[:6] == ["demo", "doctor", "fit", "discover", "learn", "predict"] and listed[-1] == "bench"


@pytest.mark.parametrize("command", ["fit", "discover", "learn", "evaluate", "predict"])
def test_the_help_tells_when_images_are_streamed(inlay: Callable[..., CompletedProcess[str]], command: str) -> None:
    words = re.sub(r"[\s│]+", " ", inlay(command, "--help").stdout)
    assert SHARE_OF_MEMORY == 1 / 4 and "if they take at most a quarter of it" in words
