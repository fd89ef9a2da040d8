import contextlib
import hashlib
import io
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from PIL import Image

from inlay.cli import main
from tiny_digits import QUICK, digits

Finished = CompletedProcess[str]

BASE, NEW = ["0", "1", "2", "3"], ["4", "5", "6"]


def _inlay(*arguments: object) -> Finished:
    """Run the command line in this process."""
    command = ["inlay", *map(str, arguments)]
    stdout, stderr = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        pytest.raises(SystemExit) as stop,
    ):
        patch.setattr(sys, "argv", command)
        main()
    code = stop.value.code
    assert isinstance(code, int)
    return CompletedProcess(command, code, stdout.getvalue(), stderr.getvalue())


def write_digits(folder: Path, names: Sequence[str], first: int, last: int) -> Path:
    """Write images first..last-1 of each named digit into a folder of its own."""
    chosen = digits(names, first, last)
    assert chosen.labels is not None
    for number, (image, label) in enumerate(zip(chosen.images, chosen.labels.tolist(), strict=True)):
        file = folder / f"digit {names[label]}" / f"{number:03d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(file)
    return folder


@pytest.fixture(autouse=True, scope="session")
def no_forced_colours() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session")
def inlay() -> Callable[..., Finished]:
    return _inlay


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    """Options of `fit` under which a stage takes a second, and all images are learned."""
    changes = tuple(f"--set={name}={value}" for name, value in {**QUICK, "base.contrastive": 0.0}.items())
    return ("--held-out=0", "--no-self-test", *changes)


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `base`, `new` and `test` with one sub-folder per class, and `flat` with the images of `new`."""
    folder = tmp_path_factory.mktemp("pictures")
    write_digits(folder / "base", BASE, 0, 20)
    write_digits(folder / "new", NEW, 0, 20)
    write_digits(folder / "test", [*BASE, *NEW], 20, 30)
    (folder / "flat").mkdir()
    for image in (folder / "new").rglob("*.png"):
        shutil.copy(image, folder / "flat")
    return folder


@pytest.fixture(scope="session")
def fitting(pictures: Path, quick: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A run of four labelled classes, and what the command said; only to be copied."""
    run = tmp_path_factory.mktemp("fitted") / "digits.inlay"
    return run, _inlay("fit", pictures / "base", "--out", run, "--backbone", "resnet8", *quick)


@pytest.fixture(scope="session")
def discovering(
    fitting: tuple[Path, Finished], pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Finished]:
    """The same run after it discovered three classes, and what the command said; only to be copied."""
    run = tmp_path_factory.mktemp("discovered") / "digits.inlay"
    shutil.copytree(fitting[0], run)
    return run, _inlay("discover", run, pictures / "new", "--classes", 3)


@pytest.fixture
def fitted(fitting: tuple[Path, Finished], tmp_path: Path) -> Path:
    return Path(shutil.copytree(fitting[0], tmp_path / "run.inlay"))


@pytest.fixture
def discovered(discovering: tuple[Path, Finished], tmp_path: Path) -> Path:
    return Path(shutil.copytree(discovering[0], tmp_path / "run.inlay"))


@pytest.fixture
def content() -> Callable[[Path], dict[str, str]]:
    """The checksum of every file below a folder, or of the file itself."""

    def content(path: Path) -> dict[str, str]:
        files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
        return {str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    return content


@pytest.fixture
def refused(inlay: Callable[..., Finished], content: Callable[[Path], dict[str, str]]) -> Callable[..., str]:
    """Run a command that must fail with one sentence and leave a path as it was; return the sentence."""

    def refused(untouched: Path, *arguments: object) -> str:
        before = content(untouched)
        finished = inlay(*arguments)
        assert finished.returncode == 2
        assert finished.stderr.startswith("Error: ")
        assert finished.stderr.endswith(".\n")
        assert finished.stderr.count("\n") == 1
        assert content(untouched) == before
        return finished.stderr.removeprefix("Error: ").removesuffix("\n")

    return refused
