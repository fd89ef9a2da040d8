"""Networks of timm, its tiny test models with random weights, from files and folders on the disk."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from inlay import backbones
from inlay.backbones.named import Backbone
from inlay.errors import InlayError
from pretrained_runs import coloured, merge_gap_after_training, same_features_in_training, stages_and_reopening

try:
    timm: Any = importlib.import_module("timm")
except (ImportError, RuntimeError) as error:
    pytest.skip(f"timm cannot be imported: {error}", allow_module_level=True)

CONFIG = {"architecture": "test_vit", "pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of weights for each network."""
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("weights")
    for name in ("test_resnet", "test_vit"):
        save_file(timm.create_model(name).state_dict(), place / f"{name}.safetensors")
    torch.save(timm.create_model("test_resnet").state_dict(), place / "test_resnet.pth")
    return place


def _begun(name: str, path: Path, size: int = 32) -> Backbone:
    return backbones.begin(f"timm:{name}@{path}", 3, (size, size), None)


def _images(count: int, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _features(network: nn.Module, images: Tensor) -> Tensor:
    assert not any(module.training for module in network.modules())
    features: Tensor = network(images)
    return features


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_features_are_what_the_head_sees(folder: Path, name: str) -> None:
    file = folder / f"{name}.safetensors"
    before = torch.get_rng_state()
    begun = _begun(name, file, 160)
    assert torch.equal(before, torch.get_rng_state())
    assert begun.name == f"timm:{name}"
    whole, images = timm.create_model(name, checkpoint_path=str(file)).eval(), _images(2, 160)
    features = _features(begun.network, images)
    with torch.no_grad():
        assert torch.allclose(whole.get_classifier()(features), whole(images), atol=1e-5)


def test_weights_without_a_head_are_taken(tmp_path: Path) -> None:
    weights = timm.create_model("test_vit", num_classes=0).state_dict()
    save_file(weights, tmp_path / "headless.safetensors")
    loaded = _begun("test_vit", tmp_path, 160).network.state_dict()
    assert loaded and all(torch.equal(tensor, weights[name]) for name, tensor in loaded.items())


def test_a_state_dict_of_torch_is_read(folder: Path) -> None:
    weights = torch.load(folder / "test_resnet.pth", weights_only=True)
    loaded = _begun("test_resnet", folder / "test_resnet.pth").network.state_dict()
    assert loaded and all(torch.equal(tensor, weights[name]) for name, tensor in loaded.items())


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_skeleton_needs_no_weights(folder: Path, name: str) -> None:
    begun = _begun(name, folder / f"{name}.safetensors")
    assert begun.name is not None
    again = backbones.skeleton(begun.name, 3, json.loads(json.dumps(begun.architecture)))
    assert not torch.equal(_features(again, _images(2)), _features(begun.network, _images(2)))
    again.load_state_dict(begun.network.state_dict(), strict=True)
    assert torch.equal(_features(again, _images(2)), _features(begun.network, _images(2)))
    assert str(folder) not in json.dumps(begun.architecture)


def test_a_skeleton_is_not_fetched() -> None:
    with pytest.raises(InlayError, match="timm knows no network 'hf-hub:some/model'; the run was changed"):
        backbones.skeleton("timm:test_vit", 3, {"name": "hf-hub:some/model", "img_size": None})


def test_a_folder_says_how_its_weights_want_images(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "test_vit.safetensors", tmp_path / "model.safetensors")
    plain = backbones.expected(f"timm:test_vit@{tmp_path}")
    assert plain is not None and plain.size == 160 and plain.mean == (0.5, 0.5, 0.5)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    begun = _begun("test_vit", tmp_path)
    assert begun.expected is not None
    assert (begun.expected.mean, begun.expected.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InlayError, match="is not what timm writes beside weights"):
        backbones.expected(f"timm:test_vit@{tmp_path}")


def test_stochastic_depth_is_left_out(tmp_path: Path) -> None:
    save_file(timm.create_model("swin_tiny_patch4_window7_224").state_dict(), tmp_path / "model.safetensors")
    begun = _begun("swin_tiny_patch4_window7_224", tmp_path, 56)
    assert same_features_in_training(begun.network, _images(2, 56))


@pytest.mark.parametrize(("name", "kinds"), [("test_resnet", {"conv-bn"}), ("test_vit", {"mlp"})])
def test_branches_attach_learn_and_merge(folder: Path, name: str, kinds: set[str]) -> None:
    network = _begun(name, folder / f"{name}.safetensors").network
    gap, plan = merge_gap_after_training(network, _images(6).double())
    assert {unit.kind for unit in plan.units} == kinds
    assert gap < 1e-10


@pytest.mark.parametrize("name", ["test_resnet", "test_vit"])
def test_a_run_is_scaled_as_the_network_was_and_opens_without_its_weights(
    folder: Path, tmp_path: Path, name: str
) -> None:
    file = tmp_path / "weights.safetensors"
    shutil.copy(folder / f"{name}.safetensors", file)
    learner, again, _ = stages_and_reopening(f"timm:{name}@{file}", tmp_path / "run", size=32)
    form = learner.knowledge.form
    assert (form.size, form.mean, form.std) == ((32, 32), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    file.unlink()
    again = learner.load(tmp_path / "run", device="cpu")
    images = coloured(4, 24)
    assert again.predict(images) == learner.predict(images)
    assert again.knowledge.backbone == f"timm:{name}"


def test_weights_of_another_network_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"timm cannot load the weights of .*; without network name a file or folder"):
        _begun("test_vit", folder / "test_resnet.safetensors")
    (tmp_path / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InlayError, match=r"timm cannot load the weights of"):
        _begun("test_vit", tmp_path)


def test_unknown_names_and_places_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"timm knows no network 'test_rasnet'; .*such as"):
        backbones.expected(f"timm:test_rasnet@{folder / 'test_vit.safetensors'}")
    with pytest.raises(InlayError, match=r"timm cannot find 'resnet18\.nothing'"):
        backbones.expected("timm:resnet18.nothing")
    with pytest.raises(InlayError, match=r"holds 3, such as .*; name the file"):
        backbones.expected(f"timm:test_vit@{folder}")
    with pytest.raises(InlayError, match="holds none"):
        backbones.expected(f"timm:test_vit@{tmp_path}")
    with pytest.raises(InlayError, match="There is no file or folder"):
        backbones.expected(f"timm:test_vit@{tmp_path / 'nowhere'}")
    with pytest.raises(InlayError, match="write timm:NAME, or timm:NAME@PATH"):
        backbones.expected("timm:test_vit@")
