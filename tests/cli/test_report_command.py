import re
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import inlay as library

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]
Story = tuple[Path, CompletedProcess[str]]


def test_discover_writes_a_report_beside_the_run(discovering: Story) -> None:
    run, _ = discovering
    report = run.with_name("digits.inlay.stage-1.html")
    page = report.read_text()
    for entry in library.load(run).classes.of_stage(1):
        assert f"</span>{entry.name}</h4>" in page
    assert page.count('src="data:image/png;base64,') == 6
    assert not re.search(r'(src|href)="(?!data:)', page)


def test_the_command_writes_the_same_report_again(inlay: Inlay, discovered: Path, discovering: Story) -> None:
    said = inlay("report", discovered)
    report = discovered.with_name("run.inlay.stage-1.html")
    assert (said.returncode, said.stdout, said.stderr) == (0, f"{report}\n", "")
    first = discovering[0].with_name("digits.inlay.stage-1.html").read_text()
    assert report.read_text() == first.replace("digits.inlay", "run.inlay")
    assert inlay("report", discovered).returncode == 0, "its own report is replaced"


def test_a_run_has_a_report_for_each_stage(inlay: Inlay, discovered: Path, pictures: Path, tmp_path: Path) -> None:
    said = inlay("discover", discovered, pictures / "flat", "--classes", 2, "--set", "training.epochs=1")
    assert said.stdout.splitlines()[-2] == f"Report: {discovered}.stage-2.html"
    assert inlay("report", discovered, "--stage", 1, "--out", tmp_path / "first.html").returncode == 0
    assert "stage 1</h1>" in (tmp_path / "first.html").read_text()
    assert "stage 2</h1>" in Path(f"{discovered}.stage-2.html").read_text()


def test_missing_images_are_said_in_the_report(inlay: Inlay, discovered: Path, pictures: Path, tmp_path: Path) -> None:
    some = Path(shutil.copytree(pictures / "new", tmp_path / "some"))
    for file in sorted(some.rglob("*.png"))[::2]:
        file.unlink()
    said = inlay("report", discovered, "--images", some)
    assert said.returncode == 0, said.stderr
    assert said.stdout.splitlines()[0] == "Found 30 of the 60 images of stage 1."
    assert re.fullmatch(
        r"Of the \d+ images that stand for its classes \d+ are missing or have changed since, such as 'digit \d/.*'\.",
        said.stdout.splitlines()[1],
    )
    page = discovered.with_name("run.inlay.stage-1.html").read_text()
    assert "of which 30 are missing or have changed since" in page
    missing = [int(number) for number in re.findall(r" · (\d+) missing", page)]
    assert sum(missing) == 30


def test_refusals(refused: Refused, discovered: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.html").write_text("mine")
    assert "is there already" in refused(tmp_path, "report", discovered, "--out", tmp_path / "mine.html")
    assert "which holds a run and nothing else" in refused(
        discovered, "report", discovered, "--out", discovered / "a.html"
    )
    assert "There is no stage 4" in refused(discovered, "report", discovered, "--stage", 4)


def test_a_run_without_discovered_classes_has_no_report(refused: Refused, fitted: Path) -> None:
    assert refused(fitted, "report", fitted).startswith("Stage 0 found no classes by itself")


def test_a_stage_counts_without_its_report(inlay: Inlay, fitted: Path, pictures: Path) -> None:
    Path(f"{fitted}.stage-1.html").mkdir()
    said = inlay("discover", fitted, pictures / "flat", "--classes", 2, "--set", "training.epochs=1")
    assert said.returncode == 0
    assert said.stderr.startswith("The report of the stage was not written. ")
    assert said.stderr.count("\n") == 1
    assert len(library.load(fitted).stages) == 2
