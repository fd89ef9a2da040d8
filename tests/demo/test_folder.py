from pathlib import Path

from inlay.demo import free_folder


def test_free_folder_is_the_name_itself_at_first(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "runs", "demo") == tmp_path / "runs" / "demo"


def test_free_folder_counts_from_two(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    assert free_folder(tmp_path, "demo") == tmp_path / "demo-2"
    (tmp_path / "demo-2").write_text("a file is in the way too")
    assert free_folder(tmp_path, "demo") == tmp_path / "demo-3"


def test_free_folder_fills_a_gap(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-3").mkdir()
    assert free_folder(tmp_path, "demo") == tmp_path / "demo-2"


def test_free_folder_makes_nothing(tmp_path: Path) -> None:
    free_folder(tmp_path / "runs", "demo")
    assert list(tmp_path.iterdir()) == []
