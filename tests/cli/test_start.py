import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from subprocess import CompletedProcess

SLOW_TO_IMPORT = ("sklearn", "scipy", "pandas", "matplotlib", "onnx", "onnxruntime", "fastapi", "timm", "transformers")


def test_nothing_slow_is_imported_before_it_is_needed() -> None:
    program = f"import sys, inlay.cli; print([name for name in {SLOW_TO_IMPORT} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_the_version_is_told(inlay: Callable[..., CompletedProcess[str]]) -> None:
    said = inlay("--version")
    assert (said.returncode, said.stdout) == (0, f"inlay {version('inlay')}\n")
