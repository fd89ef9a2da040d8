from pathlib import Path

import pytest
from PIL import Image

from inlay.data import load
from inlay.errors import InlayError


def test_list(tmp_path: Path) -> None:
    (tmp_path / "inner folder").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Image.new("L", (8, 8), 1).save(tmp_path / "inner folder" / "a #1.png")
    Image.new("L", (8, 8), 2).save(elsewhere / "b.png")
    (tmp_path / "list.txt").write_bytes(f"\ufeff{elsewhere / 'b.png'}\r\n\r\ninner folder/a #1.png\n".encode())
    images = load(tmp_path / "list.txt")
    assert images.labels is None
    assert images.images[:, 0, 0, 0].tolist() == [2, 1]
    assert images.names == (str(elsewhere / "b.png"), str(tmp_path / "inner folder" / "a #1.png"))


def test_missing_file_is_named_with_its_line(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "list.txt").write_text("a.png\n\ngone/b.png\n")
    with pytest.raises(InlayError, match=r"Line 3 of '.*list\.txt' names 'gone/b\.png', which is no file"):
        load(tmp_path / "list.txt")


def test_empty_or_unreadable_list(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(InlayError, match="names no images; write one path per line"):
        load(tmp_path / "empty.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InlayError, match=r"cannot be read as text .* save it as UTF-8"):
        load(tmp_path / "binary.txt")
