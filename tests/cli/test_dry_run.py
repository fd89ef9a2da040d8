from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]
Content = Callable[[Path], dict[str, str]]

LAST = "Nothing was written; repeat the command without --dry-run to learn."


def _rows(said: CompletedProcess[str]) -> dict[str, str]:
    *lines, last = said.stdout.splitlines()
    assert last == LAST
    parts = [line.split("  ", 1) for line in lines if "  " in line]
    return {name: text.strip() for name, text in parts}


def test_fit(inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    run = tmp_path / "run.inlay"
    arguments = ("fit", pictures / "base", "--out", run, "--backbone", "resnet8", *quick)
    said = inlay(*arguments, "--dry-run")
    assert said.returncode == 0
    rows = _rows(said)
    # 80 images in batches of 40, 2 epochs.
    assert (rows["stage"], rows["kind"], rows["images"], rows["classes"]) == ("0", "base", "80", "4")
    assert (rows["epochs"], rows["batch"], rows["steps"], rows["pace"]) == ("2", "40", "4", "eager")
    assert rows["images live"] == "in host memory"
    assert rows["one step"].endswith(" images/s")
    assert not run.exists()
    assert inlay(*arguments).returncode == 0


def test_fit_with_streamed_images(inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    arguments = ("fit", pictures / "base", "--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    for option, place in (("--stream", "decoded from disk while training"), ("--no-stream", "in host memory")):
        said = inlay(*arguments, option, "--dry-run")
        assert said.returncode == 0
        assert _rows(said)["images live"] == place


def test_discover(inlay: Inlay, fitted: Path, pictures: Path, content: Content) -> None:
    before = content(fitted)
    said = inlay("discover", fitted, pictures / "flat", "--classes", 3, "--set", "training.epochs=3", "--dry-run")
    assert said.returncode == 0
    rows = _rows(said)
    # 60 images in batches of 20.
    assert (rows["stage"], rows["kind"], rows["images"], rows["classes"]) == ("1", "discovery", "60", "3")
    assert (rows["epochs"], rows["batch"], rows["steps"]) == ("3", "20", "9")
    assert content(fitted) == before


def test_errors_come_now(refused: Refused, fitted: Path, pictures: Path, quick: tuple[str, ...]) -> None:
    sentence = refused(fitted, "discover", fitted, pictures / "flat", "--classes", 61, "--dry-run")
    assert sentence.startswith("Finding 61 new classes needs more than 61 images; got 60")
    data = pictures / "new"
    sentence = refused(fitted, "fit", data, "--out", fitted, "--backbone", "resnet8", *quick, "--dry-run")
    assert sentence.startswith(f"{fitted} already holds a run")


def test_streamed_run_is_the_run(
    inlay: Inlay, discovering: tuple[Path, object], pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    """Streamed images are learned, scored and predicted like images in memory."""
    run = tmp_path / "run.inlay"
    commands: list[tuple[object, ...]] = [
        ("fit", pictures / "base", "--out", run, "--backbone", "resnet8", *quick),
        ("discover", run, pictures / "new", "--classes", 3),
    ]
    for command in commands:
        said = inlay(*command, "--stream")
        assert said.returncode == 0, said.stderr
    for command in (("predict", pictures / "test"), ("evaluate", pictures / "test", "--json")):
        name, *rest = command
        streamed, kept = inlay(name, run, *rest, "--stream"), inlay(name, discovering[0], *rest, "--no-stream")
        assert streamed.returncode == 0, streamed.stderr
        assert streamed.stdout == kept.stdout
