from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

import inlay as library

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--preset", "ours", "There is no preset 'ours'; choose one of: inlay, paper, "),
        ("--backbone", "resnet9000", "resnet9000"),
        ("--set", "epochs=3", "There is no setting 'epochs'"),
        ("--set", "training=3", "There is no setting 'training'"),
        ("--set", "base.training.epochs=many", "'base.training.epochs' must be a whole number"),
        ("--set", "base.training.learning_rate=nan", "'base.training.learning_rate' must be a number"),
        ("--set", "base.view=sideways", "There is no augmentation 'sideways'"),
        ("--set", "base.training.epochs", "Write --set base.training.epochs=VALUE"),
        ("--device", "tpu", "There is no device 'tpu'; write auto, cpu or cuda."),
        ("--size", "0", "The image size 0 is not understood"),
    ],
)
def test_fit_refuses(
    refused: Refused,
    pictures: Path,
    quick: tuple[str, ...],
    tmp_path: Path,
    option: str,
    value: str,
    complaint: str,
) -> None:
    backbone = () if option == "--backbone" else ("--backbone", "resnet8")
    data = pictures / "base"
    sentence = refused(data, "fit", data, "--out", tmp_path / "run.inlay", *backbone, *quick, option, value)
    assert complaint in sentence


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--set", "method=guess", "guess"),
        ("--set", "first_view=sideways", "There is no augmentation 'sideways'"),
        ("--set", "training.batch=0", "'training.batch' must be at least 2"),
        ("--set", "=3", "There is no setting ''"),
        ("--set", "training.epochs", "Write --set training.epochs=VALUE"),
        ("--device", "tpu", "There is no device 'tpu'"),
    ],
)
def test_discover_refuses(
    refused: Refused, fitted: Path, pictures: Path, option: str, value: str, complaint: str
) -> None:
    assert complaint in refused(fitted, "discover", fitted, pictures / "flat", "--classes", 3, option, value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_cuda_device(refused: Refused, fitted: Path, pictures: Path) -> None:
    sentence = refused(fitted, "predict", fitted, pictures / "flat", "--device", "cuda")
    assert sentence == "No CUDA device is available; write --device cpu."


def test_fit_that_diverges(refused: Refused, pictures: Path, quick: tuple[str, ...], tmp_path: Path) -> None:
    run, data = tmp_path / "run.inlay", pictures / "base"
    change = "base.training.learning_rate=1e30"
    sentence = refused(data, "fit", data, "--out", run, "--backbone", "resnet8", *quick, "--set", change)
    assert "is not finite" in sentence
    assert "try a lower learning rate" in sentence


def test_discovery_that_diverges_leaves_a_run_that_goes_on(
    inlay: Inlay, refused: Refused, fitted: Path, pictures: Path
) -> None:
    arguments = ("discover", fitted, pictures / "flat", "--classes", 3)
    sentence = refused(fitted, *arguments, "--set", "training.learning_rate=1e30")
    assert "is not finite" in sentence
    assert len(library.load(fitted).stages) == 1
    assert inlay(*arguments).returncode == 0
    assert len(library.load(fitted).stages) == 2


def test_unknown_command_and_missing_option_are_explained_without_a_traceback(inlay: Inlay, fitted: Path) -> None:
    for arguments, complaint in (
        (("teach",), "teach"),
        (("rollback", fitted), "--to"),
        (("info",), "run"),
    ):
        said = inlay(*arguments)
        assert said.returncode == 2
        assert complaint in said.stderr
        assert "Traceback" not in said.stderr
