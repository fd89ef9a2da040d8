import csv
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.parse import unquote

import pytest

import inlay as library
from inlay.decided import keep_decisions
from inlay.decisions import Decision, Rename, replay
from inlay.run_folder import RunFolder

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]


def _rows(file: Path) -> list[dict[str, str]]:
    with open(file, newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def _decide(run: Path, *taken: Decision) -> None:
    before = library.load(run).knowledge
    keep_decisions(RunFolder.open(run), before, list(taken), replay(before, list(taken)))


@pytest.fixture
def renamed(discovered: Path) -> Path:
    """The run after two of its classes were called by names that are no names of folders."""
    _decide(discovered, Rename(4, "../../x"), Rename(5, "..\\..\\x"))
    return discovered


def test_clusters_table_and_tasks_tell_the_same(inlay: Inlay, renamed: Path, pictures: Path, tmp_path: Path) -> None:
    folder, table, tasks = tmp_path / "deep/out", tmp_path / "a.csv", tmp_path / "tasks.json"
    folder.parent.mkdir()
    there = set(tmp_path.rglob("*"))
    said = inlay("export", renamed, "--clusters", folder, "--csv", table, "--label-studio", tasks)
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.splitlines() == [str(folder), str(table), str(tasks)]
    record, rows = library.load(renamed).stages[1], _rows(table)
    assert Counter(row["class_id"] for row in rows) == Counter(str(4 + cluster) for cluster in record.clusters)
    assert {(row["stage"], row["verdict"]) for row in rows} == {("1", "new")}
    copies = sorted(file for file in folder.rglob("*") if file.is_file())
    assert sorted(file.read_bytes() for file in copies) == sorted(Path(row["path"]).read_bytes() for row in rows)
    assert {file.parent.parent for file in copies} == {folder}
    assert set(tmp_path.rglob("*")) == there | {folder, table, tasks} | set(copies) | {file.parent for file in copies}
    by_class = Counter(file.parent.name for file in copies)
    assert sorted(by_class.values()) == sorted(Counter(row["class_name"] for row in rows).values())
    said_by_tasks = [
        (unquote(task["data"]["image"].partition("?d=")[2]), task["predictions"][0]["result"][0]["value"]["choices"])
        for task in json.loads(tasks.read_text())
    ]
    assert said_by_tasks == [(row["path"].lstrip("/"), [row["class_name"]]) for row in rows]


def test_links_and_an_earlier_stage(inlay: Inlay, discovered: Path, pictures: Path, tmp_path: Path) -> None:
    assert (
        inlay("discover", discovered, pictures / "flat", "--classes", 2, "--set", "training.epochs=1").returncode == 0
    )
    said = inlay("export", discovered, "--clusters", tmp_path / "out", "--stage", 1, "--link")
    assert said.returncode == 0, said.stderr
    files = [file for file in (tmp_path / "out").rglob("*") if not file.is_dir()]
    assert len(files) == 60
    assert all(file.is_symlink() and Path(os.readlink(file)).is_file() for file in files)
    assert {Path(os.readlink(file)).parent.parent for file in files} == {pictures / "new"}


def test_images_that_were_moved_are_found_where_one_says(
    inlay: Inlay, refused: Refused, discovered: Path, pictures: Path, tmp_path: Path
) -> None:
    moved = (pictures / "new").rename(pictures / "moved")
    try:
        assert "are not where they were; write --images" in refused(
            discovered, "export", discovered, "--csv", tmp_path / "a.csv"
        )
        said = inlay("export", discovered, "--csv", tmp_path / "a.csv", "--images", pictures / "flat")
    finally:
        moved.rename(pictures / "new")
    assert said.returncode == 0, said.stderr
    assert {Path(row["path"]).parent for row in _rows(tmp_path / "a.csv")} == {pictures / "flat"}


def test_files_are_not_written_over_unless_told(
    inlay: Inlay, refused: Refused, discovered: Path, tmp_path: Path
) -> None:
    table, folder = tmp_path / "a.csv", tmp_path / "out"
    table.write_text("mine")
    folder.mkdir()
    (folder / "b.txt").write_text("mine")
    assert "is there already" in refused(tmp_path, "export", discovered, "--csv", table)
    assert "is there already" in refused(tmp_path, "export", discovered, "--label-studio", table)
    assert "holds something already" in refused(tmp_path, "export", discovered, "--clusters", folder)
    said = inlay("export", discovered, "--csv", table, "--clusters", folder, "--overwrite")
    assert said.returncode == 0, said.stderr
    assert len(_rows(table)) == 60
    assert (folder / "b.txt").read_text() == "mine"
    assert sum(file.suffix == ".png" for file in folder.rglob("*")) == 60


@pytest.mark.parametrize(
    ("stage", "sentence"),
    [(0, "Stage 0 found no classes by itself"), (2, "There is no stage 2; write a number from 1 to 1")],
)
def test_stages_that_have_no_clusters_are_refused(
    refused: Refused, discovered: Path, tmp_path: Path, stage: Any, sentence: str
) -> None:
    assert sentence in refused(discovered, "export", discovered, "--csv", tmp_path / "a.csv", "--stage", stage)


def test_a_run_folder_takes_no_images(refused: Refused, discovered: Path) -> None:
    assert "which holds a run and nothing else" in refused(
        discovered, "export", discovered, "--clusters", discovered / "out"
    )
