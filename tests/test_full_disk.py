"""Commands on a disk that fills up: a small file system where one can be mounted, a limit on the size of files."""

import resource
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import inlay
from command_runs import discovering, left_by, new_base_run, pictures, start, undisturbed
from inlay.engine.progress import QuietProgress
from inlay.errors import InlayError
from inlay.run_folder import RunFolder
from tiny_runs import contents

PAGE = 4096
DISK = 8 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of eight megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def _leave(disk: Path, pages: int) -> None:
    """Fill a disk up to some pages."""
    (disk / "ballast").unlink(missing_ok=True)
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - pages * PAGE))


def _pages(file: Path) -> int:
    return -(-file.stat().st_size // PAGE)


def test_stage_that_finds_the_disk_full_anywhere_is_finished_when_there_is_space(disk: Path) -> None:
    run = new_base_run(disk / "run")
    before = contents(run)
    stage = undisturbed() / "stages" / "001-novel"
    tensors, facts = _pages(stage / "tensors.safetensors"), _pages(stage / "stage.json")
    for pages, option, file in (
        (0, (), "progress/001-training.safetensors"),
        (3 * tensors, (), "stages/.001-novel.tmp/tensors.safetensors"),
        # The checkpoint that is dropped first makes room for the next one.
        (tensors, ("--restart",), "stages/.001-novel.tmp/stage.json"),
        (tensors + facts, ("--restart",), "inlay.json"),
    ):
        _leave(disk, pages)
        sentence = start(*discovering(run), *option).refusal()
        assert sentence == f"The disk is full: {run / file} was not written; free some space and repeat the command."
        assert contents(run) == before
        assert len(inlay.load(run, device="cpu").stages) == 1
    (disk / "ballast").unlink()
    command = start(*discovering(run))
    assert command.code() == 0, command.complained
    assert left_by(run) == []


def test_full_disk_keeps_what_rollback_would_drop(disk: Path) -> None:
    run = Path(shutil.copytree(undisturbed(), disk / "run"))
    before = contents(run / "stages")
    _leave(disk, 0)
    assert start("rollback", run, "--to", 0).refusal().startswith("The disk is full: ")
    assert contents(run / "stages") == before and RunFolder.open(run).stage_count == 2
    (disk / "ballast").unlink()
    assert start("rollback", run, "--to", 0).code() == 0
    assert RunFolder.open(run).stage_count == 1


@pytest.mark.parametrize("arguments", [("report",), ("export", "--weights")])
def test_full_disk_leaves_no_part_of_what_is_written_beside_a_run(disk: Path, arguments: tuple[str, ...]) -> None:
    run = Path(shutil.copytree(undisturbed(), disk / "run"))
    command, *option = arguments
    target = ("--out", disk / "report.html") if command == "report" else (*option, disk / "weights")
    _leave(disk, 1)
    assert start(command, run, *target).refusal().startswith("The disk is full: ")
    assert sorted(entry.name for entry in disk.iterdir()) == ["ballast", "run"]


def test_decision_that_finds_the_disk_full_is_not_taken(disk: Path) -> None:
    session_module = pytest.importorskip("inlay.review.server.session")
    run = Path(shutil.copytree(undisturbed(), disk / "run"))
    rename = {"decision": "rename", "id": 3, "name": "cat"}
    with session_module.open_session(run, str(pictures(second=False)), torch.device("cpu"), QuietProgress()) as session:
        _leave(disk, 0)
        with pytest.raises(InlayError, match=r"^The disk is full: .*; free some space and repeat the command\.$"):
            session.decide(rename, 0)
        assert session.revision == 0 and session.after.registry.names[3] == "new-1.1"
        assert inlay.load(run, device="cpu").classes.names[3] == "new-1.1"
        (disk / "ballast").unlink()
        session.decide(rename, 0)
    assert inlay.load(run, device="cpu").classes.names[3] == "cat"


def test_stage_whose_files_may_not_grow_is_finished_when_they_may(tmp_path: Path) -> None:
    run = new_base_run(tmp_path / "run")
    before = contents(run)
    limit = (undisturbed() / "stages" / "001-novel" / "tensors.safetensors").stat().st_size
    command = start(*discovering(run), before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    file = run / "progress" / "001-training.safetensors"
    assert command.refusal() == (f"{file} cannot be written (File too large); choose a folder that you can write to.")
    assert contents(run) == before and not list((run / "progress").iterdir())
    again = start(*discovering(run))
    assert again.code() == 0, again.complained
    assert left_by(run) == []
