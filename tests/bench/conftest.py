from pathlib import Path

import pytest

from bench.digits_archive import write_digits
from inlay.bench import Places


@pytest.fixture(scope="session")
def digits_as_cifar10(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def places(digits_as_cifar10: Path, tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("bench")
    return Places(digits_as_cifar10, folder / "out", folder / "work", device="cpu", commit="abc")
