import importlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.networks import lived_in
from torch import Tensor, nn

from inlay import backbones
from inlay.branches import attach, hybrid_units, merge
from inlay.branches.example import Example, floating_outputs
from inlay.branches.onnx import export_onnx
from inlay.errors import InlayError

pytest.importorskip("onnxscript")
onnx = importlib.import_module("onnx")
onnxruntime = importlib.import_module("onnxruntime")


def _images(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _small() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        return nn.Sequential(*layers).eval()


def _hybrid(model: nn.Module, example: Tensor, gate: str) -> nn.Module:
    """A network whose branches are far from zero."""
    generator = torch.Generator().manual_seed(0)
    hybrid = attach(model, example, gate=gate, generator=generator)
    for unit in hybrid_units(hybrid).values():
        if unit.norm is None:
            nn.init.normal_(unit.novel.weight, 0.0, 0.1, generator=generator)
        else:
            nn.init.constant_(unit.norm.weight, 0.5)
            nn.init.constant_(unit.norm.bias, 0.1)
    return hybrid


def _merged_resnet() -> tuple[nn.Module, Tensor]:
    model = lived_in(backbones.build("resnet8"), _images(1, 3, 16, 16), torch.Generator().manual_seed(0))
    return merge(_hybrid(model, _images(1, 3, 16, 16), "amm")).model, _images(2, 3, 16, 16)


def _merged_from_transformers(family: str, **settings: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    configuration = getattr(transformers, f"{family}Config")(num_labels=5, **settings)
    model = getattr(transformers, f"{family}ForImageClassification")(configuration)
    images = _images(1, 3, 32, 32)
    return merge(_hybrid(lived_in(model, images, torch.Generator().manual_seed(0)), images, "amm")).model


def _convnext() -> tuple[nn.Module, Tensor]:
    # One image: a batch of that size must not be taken for a constant.
    return _merged_from_transformers("ConvNext", num_stages=2, hidden_sizes=[8, 16], depths=[1, 1]), _images(
        1, 3, 32, 32
    )


def _vit() -> tuple[nn.Module, Mapping[str, object]]:
    sizes = {"image_size": 32, "patch_size": 8, "hidden_size": 16, "intermediate_size": 32}
    model = _merged_from_transformers("ViT", num_hidden_layers=1, num_attention_heads=2, **sizes)
    return model, {"pixel_values": _images(2, 3, 32, 32), "output_hidden_states": True}


def _in_onnxruntime(path: Path, *inputs: Tensor) -> list[Tensor]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [wanted.name for wanted in session.get_inputs()]
    arrays = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
    return [torch.from_numpy(array) for array in session.run(None, arrays)]


def _assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-4 * max(1.0, float(other.abs().max()))


@pytest.mark.parametrize("make", [_merged_resnet, _convnext, _vit])
def test_the_file_gives_the_outputs_of_torch_at_any_batch_size(make: Any, tmp_path: Path) -> None:
    model: nn.Module
    example: Example
    model, example = make()
    path = tmp_path / "model.onnx"
    report = export_onnx(model, example, str(path))
    rest = dict(example) if isinstance(example, Mapping) else {}
    tensor = rest.pop("pixel_values", example)
    assert isinstance(tensor, Tensor)
    for batch in (1, 2, 5):
        images = _images(batch, *tensor.shape[1:], seed=batch)
        with torch.no_grad():
            expected = floating_outputs(model(images, **rest))
        _assert_close(_in_onnxruntime(path, images), expected)
    assert report.path == path and [file.name for file in tmp_path.iterdir()] == ["model.onnx"]
    assert 0 <= report.relative_diff <= report.max_abs_diff <= 1e-4 == report.tolerance
    graph = onnx.load(path)
    assert tuple(value.name for value in graph.graph.input) == report.input_names
    assert tuple(value.name for value in graph.graph.output) == report.output_names
    assert len(report.output_names) == len(expected)
    assert report.opset == next(entry.version for entry in graph.opset_import if entry.domain == "")


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, left: Tensor, factor: float, right: Tensor) -> dict[str, Tensor]:
        features: Tensor = self.layer(left)
        return {"product": factor * features * right, "features": features, "best": features.argmax(1)}


def test_several_inputs_and_constants_and_a_fixed_batch(tmp_path: Path) -> None:
    model, left, right = _Pair().eval(), _images(2, 3), _images(2, 4)
    report = export_onnx(model, (left, 0.5, right), tmp_path / "pair.onnx", dynamic_batch=False)
    assert report.input_names == ("input_0", "input_2") and report.output_names == ("output_0", "output_1")
    with torch.no_grad():
        expected = model(left + 1, 0.5, right + 1)
    actual = _in_onnxruntime(tmp_path / "pair.onnx", left + 1, right + 1)
    _assert_close(actual, [expected["product"], expected["features"]])
    shapes = [[size.dim_value for size in value.type.tensor_type.shape.dim] for value in _graph(report.path).input]
    assert shapes == [[2, 3], [2, 4]]


def _graph(path: Path) -> Any:
    return onnx.load(path).graph


def test_branches_that_cannot_be_merged_are_exported_in_silence(
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    images = _images(2, 3, 8, 8)
    hybrid = _hybrid(_small(), images, "aff")
    export_onnx(hybrid, images, tmp_path / "hybrid.onnx")
    with torch.no_grad():
        _assert_close(_in_onnxruntime(tmp_path / "hybrid.onnx", images + 1), [hybrid(images + 1)])
    assert list(recwarn) == [] and capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


class _Noise(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images + torch.rand_like(images)


class _Specialised(nn.Module):
    """Depends on the batch size in a way that a graph for any batch size cannot."""

    def forward(self, images: Tensor) -> Tensor:
        return images * 2 if images.shape[0] == 2 else images


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (_Noise(), r"differs from the network by .*nothing was written"),
        (_Specialised(), "dynamic_batch=False"),
    ],
)
def test_a_file_that_would_be_wrong_is_not_written(model: nn.Module, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"from before")
    with pytest.raises(InlayError, match=message):
        export_onnx(model.eval(), _images(2, 3), path)
    assert path.read_bytes() == b"from before" and list(tmp_path.iterdir()) == [path]


def test_networks_that_are_not_ready_are_refused(tmp_path: Path) -> None:
    path, images = tmp_path / "model.onnx", _images(2, 3, 8, 8)
    with pytest.raises(InlayError, match=r"merge them with inlay\.branches\.merge first"):
        export_onnx(_hybrid(_small(), images, "amm"), images, path)
    with pytest.raises(InlayError, match=r"model\.eval\(\)"):
        export_onnx(_small().train(), images, path)
    with pytest.raises(InlayError, match="fails on the example"):
        export_onnx(_small(), images[:, :2], path)
    broken = _small()
    broken.get_parameter("0.weight").data.fill_(float("nan"))
    with pytest.raises(InlayError, match=r"'0\.weight' holds values that are not finite"):
        export_onnx(broken, images, path)
    with pytest.raises(InlayError, match=r"take 4\.3 GB, and an ONNX file holds 2 GB"):
        export_onnx(nn.Linear(2**15, 2**15, device="meta").eval(), _images(2, 2**15), path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ((_images(2, 3), 1.0, _images(3, 4)), "no batch dimension in common; write dynamic_batch=False"),
        ((_images(2, 3), 1.0, torch.tensor(2.0)), "no batch dimension in common; write dynamic_batch=False"),
        ((_images(2, 3), 1.0, [_images(2, 4)]), "not in lists or mappings"),
        ((_images(2, 3).bfloat16(), 1.0, _images(2, 4)), "'input_0' is bfloat16"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(example: Example, message: str, tmp_path: Path) -> None:
    with pytest.raises(InlayError, match=message):
        export_onnx(_Pair().eval(), example, tmp_path / "model.onnx")


@pytest.mark.parametrize("name", ["missing/model.onnx", ""])
def test_a_path_that_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InlayError, match="give the name of a file in a folder that exists"):
        export_onnx(_small(), _images(2, 3, 8, 8), tmp_path / name)


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InlayError, match=rf"needs the package {package}; write pip install 'inlay\[onnx\]'"):
        export_onnx(_small(), _images(2, 3, 8, 8), tmp_path / "model.onnx")
