"""Image models of transformers, tiny and with random weights, from folders on the disk."""

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from inlay import backbones
from inlay.backbones.named import Backbone
from inlay.errors import InlayError
from pretrained_runs import coloured, merge_gap_after_training, same_features_in_training, stages_and_reopening

try:
    transformers: Any = importlib.import_module("transformers")
    # Parts are imported when first asked for, and may only then be found to be broken.
    ViTConfig, ViTForImageClassification = transformers.ViTConfig, transformers.ViTForImageClassification
except (ImportError, RuntimeError) as error:
    pytest.skip(f"transformers cannot be imported: {error}", allow_module_level=True)

SCALING = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.25, 0.3], "size": {"height": 32, "width": 32}}
VIT: dict[str, Any] = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    **{"image_size": 32, "patch_size": 8, "num_labels": 5},
}


def _saved(model: Any, folder: Path, **preprocessing: Any) -> Path:
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**SCALING, **preprocessing}))
    return folder


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return _saved(ViTForImageClassification(ViTConfig(**VIT)), tmp_path_factory.mktemp("models") / "small-vit")


def _begun(folder: Path, size: int = 32) -> Backbone:
    return backbones.begin(f"transformers:{folder}", 3, (size, size), None)


def _images(count: int, size: int = 32) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def _features(network: nn.Module, images: Tensor) -> Tensor:
    assert not any(module.training for module in network.modules())
    features: Tensor = network(images)
    return features


def test_features_are_what_the_head_sees(vit: Path) -> None:
    whole, images = ViTForImageClassification.from_pretrained(vit).eval(), _images(3)
    before = torch.get_rng_state()
    begun = _begun(vit)
    assert torch.equal(before, torch.get_rng_state())
    features = _features(begun.network, images)
    assert features.shape == (3, 16) and begun.name == "transformers:small-vit"
    with torch.no_grad():
        assert torch.allclose(whole.classifier(features), whole(images).logits, atol=1e-6)


def test_features_of_convolutions_are_flat(tmp_path: Path) -> None:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    whole = transformers.ResNetForImageClassification(config).eval()
    begun = _begun(_saved(whole, tmp_path / "resnet"))
    features = _features(begun.network, _images(2))
    assert features.shape == (2, 16)
    with torch.no_grad():
        assert torch.allclose(whole.classifier(features), whole(_images(2)).logits, atol=1e-6)


@pytest.mark.parametrize(
    ("preprocessing", "size", "mean"),
    [
        ({}, 32, 0.5),
        ({"size": 40}, 40, 0.5),
        ({"size": {"shortest_edge": 48}, "crop_size": {"height": 40, "width": 40}}, 40, 0.5),
        ({"size": None}, 32, 0.5),
        ({"do_normalize": False}, 32, 0.0),
        ({"rescale_factor": 2 / 255}, 32, 0.25),
    ],
)
def test_the_files_say_what_images_are_expected(
    vit: Path, tmp_path: Path, preprocessing: dict[str, Any], size: int, mean: float
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    shutil.copy(vit / "config.json", folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**SCALING, **preprocessing}))
    found = backbones.expected(f"transformers:{folder}")
    assert found is not None and found.size == size
    assert found.mean[0] == pytest.approx(mean)
    # The level 255 is the same to the network, whichever way it is put.
    level = 255 * preprocessing.get("rescale_factor", 1 / 255)
    assert (1 - found.mean[0]) / found.std[0] == pytest.approx(1 if mean == 0 else (level - 0.5) / 0.2)


def test_a_skeleton_needs_no_file(vit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    shutil.copytree(vit, folder)
    begun = _begun(folder)
    shutil.rmtree(folder)
    assert begun.name is not None
    before = torch.get_rng_state()
    again = backbones.skeleton(begun.name, 3, json.loads(json.dumps(begun.architecture)))
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(_features(again, _images(2)), _features(begun.network, _images(2)))
    again.load_state_dict(begun.network.state_dict(), strict=True)
    assert torch.equal(_features(again, _images(2)), _features(begun.network, _images(2)))
    assert str(tmp_path) not in json.dumps(begun.architecture)


def test_other_sizes_interpolate_the_positions(vit: Path) -> None:
    begun = _begun(vit, size=48)
    assert _features(begun.network, _images(2, 48)).shape == (2, 16)
    assert begun.name is not None
    again = backbones.skeleton(begun.name, 3, begun.architecture)
    again.load_state_dict(begun.network.state_dict(), strict=True)
    assert torch.equal(_features(again, _images(2, 48)), _features(begun.network, _images(2, 48)))


def test_dropout_is_left_out(tmp_path: Path) -> None:
    config = ViTConfig(**VIT, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.5)
    begun = _begun(_saved(ViTForImageClassification(config), tmp_path / "dropout"))
    assert begun.name is not None
    for network in (begun.network, backbones.skeleton(begun.name, 3, begun.architecture)):
        assert same_features_in_training(network, _images(2))


def test_half_precision_weights_are_trained_in_full(tmp_path: Path) -> None:
    begun = _begun(_saved(ViTForImageClassification(ViTConfig(**VIT)).half(), tmp_path / "half"))
    assert {tensor.dtype for tensor in begun.network.state_dict().values()} == {torch.float32}


def test_branches_attach_learn_and_merge(vit: Path) -> None:
    gap, plan = merge_gap_after_training(_begun(vit).network, _images(6).double())
    assert [unit.kind for unit in plan.units] == ["mlp"] * 4
    assert gap < 1e-12


def test_a_run_is_scaled_as_the_model_was_and_opens_without_it(vit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models" / "moved"
    shutil.copytree(vit, folder)
    learner, _, news = stages_and_reopening(f"transformers:{folder}", tmp_path / "run", size=None)
    form = learner.knowledge.form
    assert (form.size, form.mean, form.std) == ((32, 32), (0.5, 0.4, 0.3), (0.2, 0.25, 0.3))
    assert not any("from scratch" in note for note in news.notes)
    shutil.rmtree(folder)
    again = learner.load(tmp_path / "run", device="cpu")
    images = coloured(4, 24)
    assert again.predict(images) == learner.predict(images)
    assert again.knowledge.backbone == "transformers:moved"
    facts = [path.read_text() for path in (tmp_path / "run").rglob("*.json")]
    assert facts and not any(str(folder) in text for text in facts)


def test_a_size_that_is_asked_for_is_kept(vit: Path) -> None:
    found = _features(_begun(vit, size=40).network, _images(2, 40))
    assert found.shape == (2, 16)
    with pytest.raises(InlayError, match=r"does not take images of shape \[3, 4, 4\].*pass another --size"):
        backbones.feature_size(_begun(vit, size=4).network, _images(2, 4))


def test_incomplete_weights_are_refused(vit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "incomplete"
    shutil.copytree(vit, folder)
    weights = load_file(folder / "model.safetensors")
    lost = sorted(name for name in weights if not name.startswith("classifier"))[0]
    save_file({name: tensor for name, tensor in weights.items() if name != lost}, folder / "model.safetensors")
    with pytest.raises(InlayError, match=r"lack 1 of the tensors of the model, such as '.*'; name"):
        _begun(folder)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(InlayError, match=r"cannot load weights of an image model of .*; name a folder"):
        _begun(folder)


def test_what_is_no_image_model_is_refused(vit: Path, tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=r"There is no folder '.*nowhere' with a model; check the spelling"):
        backbones.expected(f"transformers:{tmp_path / 'nowhere'}")
    with pytest.raises(InlayError, match=r"has no preprocessor_config\.json"):
        backbones.expected(f"transformers:{tmp_path}")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    text = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=10))
    with pytest.raises(InlayError, match=r"cannot load weights of an image model of .*bert"):
        _begun(_saved(text, tmp_path / "bert"))
    with pytest.raises(InlayError, match="blue, green, red"):
        backbones.expected(f"transformers:{_flipped(vit, tmp_path)}")
    with pytest.raises(InlayError, match="takes images of 3 channels, not 1"):
        backbones.begin(f"transformers:{vit}", 1, (32, 32), None)


def test_code_beside_the_weights_is_not_run(vit: Path, tmp_path: Path) -> None:
    folder = tmp_path / "foreign"
    shutil.copytree(vit, folder)
    config = json.loads((folder / "config.json").read_text())
    foreign = {"model_type": "foreign", "auto_map": {"AutoConfig": "code.Config"}}
    (folder / "config.json").write_text(json.dumps({**config, **foreign}))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')\n")
    with pytest.raises(InlayError, match=r"cannot load config\.json of"):
        _begun(folder)
    assert not (tmp_path / "was-run").exists()


def _flipped(vit: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "flipped"
    shutil.copytree(vit, folder)
    (folder / "preprocessor_config.json").write_text(json.dumps({**SCALING, "do_flip_channel_order": True}))
    return folder
