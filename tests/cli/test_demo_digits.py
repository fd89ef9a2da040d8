from collections.abc import Callable
from pathlib import Path

import pytest


def test_demonstration_without_its_digits(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("inlay.data.demo.find_spec", lambda name: None)
    sentence = refused(tmp_path, "demo", "--out", tmp_path / "demo")
    assert sentence == 'The demo digits are not installed; install them with `pip install "inlay[demo]"`.'
    assert not (tmp_path / "demo").exists()
