import errno
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from inlay.engine import checkpoint
from inlay.errors import InlayError
from inlay.run_folder import RunFolder

FORK = multiprocessing.get_context("fork")
Work = Callable[[RunFolder], object]
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir"}
BASE = {"weight": torch.arange(6.0).reshape(2, 3)}
NOVEL = {"weight": torch.ones(5, 3), "bias": torch.zeros(5)}


def _run(path: Path, stages: int = 1) -> RunFolder:
    run = RunFolder.create(path)
    for index in range(stages):
        run.commit(index, "novel" if index else "base", NOVEL if index else BASE, {"stage": index})
    return run


def _commit_novel(run: RunFolder) -> None:
    run.commit(1, "novel", NOVEL, {"stage": 1})


def _content(path: Path) -> dict[str, bytes]:
    files = [file for file in path.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def test_stages_come_back_from_wherever_the_folder_lies(tmp_path: Path) -> None:
    _run(tmp_path / "run", stages=2).write_extra("matching", {"5": "cat"})
    shutil.move(tmp_path / "run", tmp_path / "moved")
    run = RunFolder.open(tmp_path / "moved")
    assert run.stage_count == 2
    for index, expected in ((0, BASE), (1, NOVEL), (-1, NOVEL), (-2, BASE)):
        tensors, facts = run.read(index)
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)
        assert facts == {"stage": index % 2}
    assert run.read_extra("matching") == {"5": "cat"}
    assert all(str(tmp_path).encode() not in content for content in _content(run.path).values())


def test_layout(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", stages=2)
    run.write_extra("matching", [1])
    stages = ["stages/000-base", "stages/001-novel"]
    files = [f"{stage}/{name}" for stage in stages for name in ("stage.json", "tensors.safetensors")]
    content = _content(run.path)
    assert set(content) == {"inlay.json", "matching.json", *files}
    checksums = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    manifest = json.loads(content["inlay.json"])
    assert manifest["format"] == 1
    assert manifest["extras"] == {"matching.json": checksums["matching.json"]}
    assert manifest["stages"] == [
        {"index": index, "name": stage[7:], "files": {f: checksums[f] for f in files if f.startswith(stage)}}
        for index, stage in enumerate(stages)
    ]


def test_create_takes_an_empty_folder_and_an_unfinished_run(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "deep" / "new"):
        assert not RunFolder.exists(path)
        RunFolder.create(path).progress_path("training").write_text("3")
        assert RunFolder.exists(path)
        assert RunFolder.create(path).progress_path("training").read_text() == "3"
        assert set(_content(path)) == {"inlay.json", "progress/000-training"}


def test_create_refuses_what_is_there(tmp_path: Path) -> None:
    _run(tmp_path / "run")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").touch()
    (tmp_path / "file").write_text("text")
    before = _content(tmp_path)
    for name, message in (
        ("run", r"run already holds a run; choose another --out, or add classes to it with `inlay discover`\.$"),
        ("full", r"full is not empty and holds no inlay run; choose another --out\.$"),
        ("file", r"file is a file; choose another --out\.$"),
        ("file/below", r"below cannot be written \(Not a directory\); choose a folder that you can write to\.$"),
    ):
        with pytest.raises(InlayError, match=message):
            RunFolder.create(tmp_path / name)
    assert _content(tmp_path) == before
    assert not (tmp_path / "full" / ".lock").exists()


def test_open_refuses_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "inlay.json").write_text("no JSON")
    for name, message in (
        ("gone", r"gone is not an inlay run folder; make one with `inlay fit DATA --out NAME`\.$"),
        ("empty", "empty is not an inlay run folder; make one with"),
        ("file", "file is a file, not an inlay run folder; make one with"),
        ("damaged", r"inlay\.json is damaged or was not written by inlay; restore it from a copy"),
    ):
        with pytest.raises(InlayError, match=message):
            RunFolder.open(tmp_path / name)
    assert not list((tmp_path / "empty").iterdir())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2, "stages": {}}, r"newer inlay, in format 2; update inlay with `pip install --upgrade inlay`\.$"),
        ({"stages": []}, r"json was changed after it was written \(edited by hand or damaged\); restore it"),
        ({"inlay": "9"}, r"inlay\.json was changed after it was written"),
        ({"format": "1"}, r"inlay\.json was changed after it was written"),
        ({"checksum": None}, r"inlay\.json was changed after it was written"),
    ],
)
def test_edited_manifest(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    run = _run(tmp_path / "run")
    manifest = json.loads((run.path / "inlay.json").read_text())
    (run.path / "inlay.json").write_text(json.dumps({**manifest, **changes}))
    before = _content(run.path)
    opening: list[Work] = [lambda run: run.open(run.path), lambda run: run.create(run.path)]
    writing: list[Work] = [_commit_novel, lambda run: run.write_extra("matching", 1)]
    for attempt in [RunFolder.read, *opening, *writing]:
        with pytest.raises(InlayError, match=message):
            attempt(run)
    assert _content(run.path) == before


@pytest.mark.parametrize("missing", ["stages/000-base/stage.json", "stages/000-base/tensors.safetensors", "notes.json"])
def test_missing_file(tmp_path: Path, missing: str) -> None:
    run = _run(tmp_path / "run")
    run.write_extra("notes", 1)
    (run.path / missing).unlink()
    message = rf"run is incomplete, as {missing} is missing; restore that file from a copy\.$"
    with pytest.raises(InlayError, match=message):
        RunFolder.open(run.path)
    with pytest.raises(InlayError, match=message):
        _ = run.read_extra("notes") if missing == "notes.json" else run.read(verify=False)


@pytest.mark.parametrize("name", ["stage.json", "tensors.safetensors"])
def test_changed_stage(tmp_path: Path, name: str) -> None:
    run = _run(tmp_path / "run")
    file = run.path / "stages" / "000-base" / name
    file.write_bytes(file.read_bytes().replace(b'"stage": 0', b'"stage": 5').replace(b"\x40", b"\x41"))
    message = rf"{name} was changed after it was written \(edited by hand or damaged\); restore it from a copy\.$"
    with pytest.raises(InlayError, match=message):
        run.read()
    tensors, facts = run.read(verify=False)
    assert facts["stage"] == (5 if name == "stage.json" else 0)
    assert torch.equal(tensors["weight"], BASE["weight"]) is (name == "stage.json")


def test_stage_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InlayError, match="has no finished stage yet; repeat the `inlay fit` that began it"):
        _run(tmp_path / "none", stages=0).read()
    for index in (2, -3):
        with pytest.raises(InlayError, match=f"has no stage {index}; write a number from 0 to 1"):
            _run(tmp_path / f"two{index}", stages=2).read(index)


def test_commit_takes_the_next_stage_only(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    before = _content(run.path)
    for index in (0, 2, -1):
        with pytest.raises(ValueError, match=f"the next stage is 1, not {index}"):
            run.commit(index, "novel", NOVEL, {})
    with pytest.raises(ValueError):
        run.commit(1, "novel", NOVEL, {"loss": float("nan")})
    assert _content(run.path) == before


def test_extras(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    assert run.read_extra("matching") is None
    run.write_extra("matching", {"a": 1})
    run.write_extra("notes", [])
    run.write_extra("matching", {"a": 2})
    run.commit(1, "novel", NOVEL, {})
    assert run.read_extra("matching") == {"a": 2}
    assert run.read_extra("notes") == []
    (run.path / "matching.json").write_text('{"a": 3}')
    with pytest.raises(InlayError, match=r"matching\.json was changed after it was written"):
        run.read_extra("matching")
    for name in ("inlay", "../up", "Upper", "", "matching.json"):
        with pytest.raises(ValueError, match="must be in lower case and not the manifest's"):
            run.write_extra(name, 1)


def test_commit_drops_progress_and_no_foreign_files(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    path = run.progress_path("training")
    assert path == run.path / "progress" / "001-training"
    path.touch()
    (path.parent / "folder").mkdir()
    (run.path / "stages" / "notes").mkdir()
    (run.path / "README").touch()
    run.commit(1, "novel", NOVEL, {})
    assert not list(path.parent.iterdir())
    assert (run.path / "stages" / "notes").is_dir() and (run.path / "README").is_file()
    assert run.progress_path("training").name == "002-training"
    with pytest.raises(ValueError, match=r"plain name, not '\.\./up'"):
        run.progress_path("../up")


def _child(target: Callable[[Path, Any], None], path: Path) -> tuple[Any, Any]:
    receiver, sender = FORK.Pipe(duplex=False)
    process = FORK.Process(target=target, args=(path, sender))
    process.start()
    return process, receiver


def _hold_lock(path: Path, ready: Any) -> None:
    with RunFolder.open(path).lock():
        ready.send("locked")
        signal.pause()


def test_two_writers(tmp_path: Path) -> None:
    run, begun = _run(tmp_path / "run"), _run(tmp_path / "begun", stages=0)
    writes = [lambda: _commit_novel(run), lambda: run.write_extra("a", 1), run.clear_progress]
    for locked, attempts in ((run, writes), (begun, [lambda: begun.create(begun.path)])):
        writer, receiver = _child(_hold_lock, locked.path)
        assert receiver.recv() == "locked"
        before = _content(locked.path)
        for attempt in attempts:
            with pytest.raises(InlayError, match=r"^Another inlay process is writing to .*; wait for it"):
                attempt()
        RunFolder.open(locked.path)
        assert _content(locked.path) == before
        writer.kill()
        writer.join()
        for attempt in attempts:
            attempt()


def test_create_looks_again_once_it_holds_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def others_go_first(_: Path) -> None:
        monkeypatch.undo()
        _run(tmp_path / "run")

    monkeypatch.setattr(checkpoint, "sync_folder", others_go_first)
    with pytest.raises(InlayError, match="run already holds a run"):
        RunFolder.create(tmp_path / "run")
    assert RunFolder.open(tmp_path / "run").stage_count == 1


def test_lock_spans_commits_and_ends(tmp_path: Path) -> None:
    run = _run(tmp_path / "run", stages=0)
    with run.lock():
        run.commit(0, "base", BASE, {})
        with pytest.raises(InlayError, match="Another inlay process"), RunFolder.open(run.path).lock():
            pass
        run.commit(1, "novel", NOVEL, {})
    RunFolder.open(run.path).commit(2, "novel", NOVEL, {})


def _refused_as_ordinary_user(folder: Path, answers: Any) -> None:
    os.chdir(folder)
    if os.geteuid() == 0:
        os.setuid(65534)
    run = RunFolder.open(Path("run"))
    for attempt in (lambda: _commit_novel(run), lambda: run.progress_path("a"), lambda: run.create(Path("new"))):
        with pytest.raises(InlayError) as refusal:
            attempt()
        answers.send(str(refusal.value))


def test_folder_without_permission(tmp_path: Path) -> None:
    run = _run(tmp_path / "run")
    before = _content(tmp_path)
    for file, mode in ((run.path / ".lock", 0o444), (run.path, 0o555), (tmp_path, 0o555)):
        file.chmod(mode)
    writer, receiver = _child(_refused_as_ordinary_user, tmp_path)
    writer.join()
    for folder in (run.path, tmp_path):
        folder.chmod(0o755)
    assert writer.exitcode == 0
    answers = [receiver.recv() for _ in range(3)]
    reason = "cannot be written (Permission denied); choose a folder that you can write to."
    assert answers == [f"run {reason}", f"run/progress {reason}", f"new {reason}"]
    assert _content(tmp_path) == before


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _find_the_disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _do_until(number: int, stop: Callable[[], None], work: Work, path: Path) -> None:
    """Do the work, but stop it right before the n-th time it changes the file system or forces a change."""
    seen, fsync = 0, os.fsync

    def count() -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            stop()

    def counted_fsync(fd: Any) -> None:
        count()
        fsync(fd)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            count()

    os.fsync = counted_fsync
    sys.addaudithook(watch)
    try:
        work(RunFolder(path))
    except InlayError as error:
        assert str(error).startswith("The disk is full: ")
    if seen >= number:
        _die()


def _stopped_everywhere(start: Path, work: Work, stop: Callable[[], None] = _die) -> list[Path]:
    """Copies of a run folder, each with the work stopped one change later than before; the last is done."""
    results: list[Path] = []
    while True:
        path = start.parent / str(len(results) + 1)
        if start.exists():
            shutil.copytree(start, path)
        results.append(path)
        process = FORK.Process(target=_do_until, args=(len(results), stop, work, path))
        process.start()
        process.join()
        if process.exitcode == 0:
            return results
        assert process.exitcode == -signal.SIGKILL


def test_full_disk_at_every_point_of_a_commit(tmp_path: Path) -> None:
    start = _run(tmp_path / "start")
    counts = []
    for path in _stopped_everywhere(start.path, _commit_novel, _find_the_disk_full):
        run = RunFolder.open(path)
        counts.append(run.stage_count)
        assert run.read()[1] == {"stage": counts[-1] - 1}
        assert _content(path) == _content(start.path) or counts[-1] == 2
    assert counts.count(1) > 5 and counts[-1] == 2


def test_commit_killed_anywhere_is_before_or_after(tmp_path: Path) -> None:
    start = _run(tmp_path / "start")
    start.write_extra("notes", "kept")
    start.progress_path("training").write_text("x")
    for leftover in (".001-novel.tmp", "001-novel"):
        shutil.copytree(start.path / "stages" / "000-base", start.path / "stages" / leftover)
    counts = []
    for path in _stopped_everywhere(start.path, _commit_novel):
        run = RunFolder.open(path)
        counts.append(run.stage_count)
        assert [run.read(index)[1]["stage"] for index in range(counts[-1])] == list(range(counts[-1]))
        assert run.read_extra("notes") == "kept"
        assert run.progress_path("training").exists() is (counts[-1] == 1)
        for index in range(counts[-1], 3):
            run.commit(index, "novel", NOVEL, {})
        assert {name for name in _content(path) if "/" not in name} == {"inlay.json", "notes.json"}
        assert {entry.name for entry in (path / "stages").iterdir()} == {"000-base", "001-novel", "002-novel"}
    assert counts == sorted(counts) and counts[0] == 1 and counts[-2:] == [2, 2]


def test_extra_killed_anywhere_is_before_or_after(tmp_path: Path) -> None:
    start = _run(tmp_path / "start")
    start.write_extra("matching", "old")
    values = []
    for path in _stopped_everywhere(start.path, lambda run: run.write_extra("matching", "new")):
        run = RunFolder.open(path)
        values.append(run.read_extra("matching"))
        run.commit(1, "novel", NOVEL, {})
        assert run.read_extra("matching") == values[-1]
        assert json.loads((path / "matching.json").read_text()) == values[-1]
        assert {name for name in _content(path) if "/" not in name} == {"inlay.json", "matching.json"}
    assert values == ["old"] * values.count("old") + ["new"] * values.count("new")
    assert values[-2:] == ["new", "new"]


def test_create_killed_anywhere_can_be_repeated(tmp_path: Path) -> None:
    for path in _stopped_everywhere(tmp_path / "none", lambda run: run.create(run.path)):
        run = _run(path)
        assert run.read()[1] == {"stage": 0}
        assert {entry.name for entry in path.iterdir()} == {"inlay.json", "stages", ".lock"}
