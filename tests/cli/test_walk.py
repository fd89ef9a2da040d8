import json
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

import inlay as library

Inlay = Callable[..., CompletedProcess[str]]
Story = tuple[Path, CompletedProcess[str]]

COMMANDS = ["fit", "discover", "evaluate", "score", "predict", "info", "demo"]


def test_fit_tells_the_stage_and_prints_the_run_last(fitting: Story) -> None:
    run, said = fitting
    first, last = said.stdout.splitlines()
    assert said.returncode == 0
    assert said.stderr == ""
    assert first.startswith("Stage 0: 4 classes from 80 images in ")
    assert last == str(run)


def test_fit_says_that_images_to_test_on_are_left_for_scoring(
    inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path
) -> None:
    both = tmp_path / "both"
    shutil.copytree(pictures / "base", both / "train")
    shutil.copytree(pictures / "base", both / "val")
    said = inlay("fit", both, "--out", tmp_path / "run.inlay", "--backbone", "resnet8", *quick)
    command = f"inlay evaluate {tmp_path / 'run.inlay'} {both}"
    assert said.stdout.splitlines()[0] == (
        f"Images to test on are not learned; score the run on them with `{command}`."
    )
    assert inlay(*command.split()[1:]).returncode == 0


def test_discover_tells_stage_and_merge_and_prints_the_run_last(discovering: Story) -> None:
    run, said = discovering
    lines = said.stdout.splitlines()
    assert said.returncode == 0
    assert said.stderr == ""
    assert lines[1].startswith("Stage 1: 3 classes from 60 images in ")
    assert lines[1].endswith("; 7 classes in all.")
    assert lines[2].startswith("Merged: outputs changed by at most ")
    assert lines[2].endswith(" parameters before and after.")
    assert lines[3:] == [f"Report: {run}.stage-1.html", str(run)]


def test_discover_says_that_it_ignores_labels(discovering: Story) -> None:
    assert "labels of these images are ignored" in discovering[1].stdout.splitlines()[0]


def test_discover_ignores_labels_and_settings_may_be_changed(
    inlay: Inlay, fitted: Path, pictures: Path, tmp_path: Path
) -> None:
    """The classes found do not depend on the labels, only on the images in their order."""
    twin = Path(shutil.copytree(fitted, tmp_path / "twin.inlay"))
    labelled = inlay("discover", fitted, pictures / "new", "--classes", 2, "--set", "training.epochs=1")
    flat = inlay("discover", twin, pictures / "flat", "--classes", 2, "--set", "training.epochs=1")
    assert "ignored" not in flat.stdout
    assert (labelled.returncode, flat.returncode) == (0, 0)
    found, unlabelled = library.load(fitted), library.load(twin)
    assert found.stages[1].clusters == unlabelled.stages[1].clusters
    assert found.settings.training.epochs == 1


def test_info_shows_classes_and_what_is_stored(inlay: Inlay, discovered: Path) -> None:
    said = inlay("info", discovered)
    rows = [line.split() for line in said.stdout.splitlines()]
    learner = library.load(discovered)
    assert said.returncode == 0
    assert rows[0] == ["id", "class", "stage", "kind", "images"]
    assert rows[1] == ["0", "digit", "0", "0", "labelled", "20"]
    sizes = [learner.stages[1].clusters.count(cluster) for cluster in range(3)]
    names = [entry.name for entry in learner.classes.of_stage(1)]
    assert rows[5:8] == [[str(4 + k), names[k], "1", "discovered", str(sizes[k])] for k in range(3)]
    assert "Network resnet8" in said.stdout
    assert "images 8×8" in said.stdout
    assert said.stdout.splitlines()[-1] == str(discovered)


@pytest.mark.parametrize("place", [".", "stages/.."])
def test_a_run_is_found_from_inside(
    inlay: Inlay, discovered: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.chdir(discovered)
    said = inlay("info", place)
    assert (said.returncode, said.stderr, said.stdout.splitlines()[-1]) == (0, "", str(Path(place)))
    assert inlay("predict", place, pictures / "flat").returncode == 0


def test_info_shows_as_many_parameters_after_the_base_stage_as_after_another(
    inlay: Inlay, fitting: Story, discovering: Story
) -> None:
    merge = library.load(discovering[0]).stages[1].merge
    assert merge is not None
    for run, _ in (fitting, discovering):
        assert f" {merge['parameters_after']:,} parameters without the head" in inlay("info", run).stdout


def test_predict_names_class_probability_and_origin(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    said = inlay("predict", discovered, pictures / "test")
    expected = library.load(discovered).predict(pictures / "test")
    origins = {False: "labelled", True: "discovered"}
    assert said.returncode == 0
    assert [line.split("\t") for line in said.stdout.splitlines()] == [
        [p.source, p.name, f"{p.probability:.3f}", origins[p.discovered]] for p in expected
    ]
    assert {p.discovered for p in expected} == {False, True}


def test_predict_takes_one_image_or_several(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    one, other = sorted((pictures / "new" / "digit 5").iterdir())[:2]
    alone = inlay("predict", discovered, one).stdout.splitlines()
    both = inlay("predict", discovered, one, other).stdout.splitlines()
    assert len(alone) == 1
    assert [line.split("\t")[0] for line in both] == [str(one), str(other)]
    assert both[0] == alone[0]


def test_evaluate_matches_on_the_given_images(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    said = inlay("evaluate", discovered, pictures / "test", "--match", pictures / "new")
    scores = library.load(discovered).evaluate(pictures / "test")
    *shown, folder = said.stdout.splitlines()
    lines = dict(line.split(maxsplit=1) for line in shown)
    assert said.returncode == 0 and folder == str(discovered)
    assert lines["matched_on"] == "train"
    assert lines["old"] == f"{scores.old:.4f}"
    assert lines["new"] == f"{scores.new:.4f}"
    assert lines["counts"] == "old 40, new 30, all 70"


def test_evaluate_prints_json_alone(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    said = inlay("evaluate", discovered, pictures / "test", "--json")
    assert json.loads(said.stdout) == library.load(discovered).evaluate(pictures / "test").to_json()
    assert json.loads(said.stdout)["matched_on"] == "test"


def test_evaluate_json_keeps_notes_out_of_stdout(inlay: Inlay, fitted: Path, pictures: Path) -> None:
    said = inlay("evaluate", fitted, pictures / "test", "--json")
    assert json.loads(said.stdout)["counts"]["all"] == 40
    assert said.stderr == "30 test images of classes that were not seen yet are left out.\n"


def test_evaluate_leaves_out_what_is_not_defined(inlay: Inlay, discovered: Path, pictures: Path) -> None:
    said = inlay("evaluate", discovered, pictures / "base", "--match", pictures / "new")
    lines = dict(line.split(maxsplit=1) for line in said.stdout.splitlines()[:-1])
    assert said.returncode == 0
    assert "new" not in lines
    assert lines["groups"] == f"base {lines['old']}"


def test_score_of_a_file_computed_by_hand(inlay: Inlay, tmp_path: Path) -> None:
    """Output 3 is x and output 2 is y by the match rows; two of three old and one of two new are right."""
    file = tmp_path / "predictions.csv"
    rows = ["match,1,x,3", "match,1,x,3", "match,1,y,2"]
    rows += ["test,0,a,0", "test,0,b,0", "test,0,b,1", "test,1,x,3", "test,1,y,0"]
    file.write_text("\n".join(["split,stage,truth,prediction", *rows]) + "\n")
    scores = json.loads(inlay("score", file, "--json").stdout)
    assert (scores["old"], scores["new"], scores["all"]) == (pytest.approx(2 / 3), 0.5, 0.6)
    assert scores["matched_on"] == "train"
    assert "all        0.6000" in inlay("score", file).stdout.splitlines()


def test_score_takes_the_order_of_classes_and_the_number_of_clusters(inlay: Inlay, tmp_path: Path) -> None:
    """Outputs: dog 0, elk 1, cat 2; stage 1 has 3, 4 and 5, of which 5 is x and 3 is y."""
    file = tmp_path / "predictions.csv"
    rows = ["test,0,cat,2", "test,0,dog,0", "test,1,x,5", "test,1,y,3", "test,1,y,4"]
    file.write_text("\n".join(["split,stage,truth,prediction", *rows]) + "\n")
    said = inlay("score", file, "--class-names", "dog, elk,cat", "--cluster-counts", "3", "--json")
    scores = json.loads(said.stdout)
    assert (scores["old"], scores["new"]) == (1.0, pytest.approx(2 / 3))


def test_score_counts_are_whole_numbers(inlay: Inlay, tmp_path: Path) -> None:
    file = tmp_path / "predictions.csv"
    file.write_text("split,stage,truth,prediction\n" + "test,0,a,0\n" * 12345 + "test,0,b,1\n" + "test,1,c,2\n")
    assert "counts     old 12346, new 1, all 12347" in inlay("score", file).stdout.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(inlay: Inlay, command: str) -> None:
    said = inlay(command, "--help")
    assert said.returncode == 0
    assert f"Example: inlay {command}" in said.stdout


def test_help_lists_every_command(inlay: Inlay) -> None:
    said = inlay("--help")
    assert said.returncode == 0
    assert [name for name in COMMANDS if f" {name} " not in said.stdout] == []


def test_names_are_shown_as_they_are(inlay: Inlay, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    """Neither markup nor emoji nor width may change the name of a class or of a folder."""
    data = tmp_path / "[red]data"
    names = ["[bold]a", "b:smile:", "c" * 100]
    for name, folder in zip(names, sorted((pictures / "base").iterdir()), strict=False):
        shutil.copytree(folder, data / name)
    run = tmp_path / "[bold]run:smile:"
    said = inlay("fit", data, "--out", run, "--backbone", "resnet8", *quick)
    assert said.stdout.splitlines()[-1] == str(run)
    shown = inlay("info", run).stdout
    assert names[0] in shown
    assert names[1] in shown
    assert shown.count("c") >= 100
    assert inlay("predict", run, data / names[1]).stdout.startswith(str(data / names[1]))
