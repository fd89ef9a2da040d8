import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from inlay import backbones, branches
from inlay.errors import InlayError
from inlay.export import Classifier
from inlay.heads import rebuild_head
from tiny_runs import SEEN, base_learner, fresh, quick_learner, two_stages


def _rebuilt(folder: Path) -> tuple[nn.Module, nn.Module, dict[str, Any]]:
    """The network and the head of a folder of weights, by what the folder says alone."""
    facts = json.loads((folder / "classes.json").read_text())
    weights = {name: torch.load(folder / f"{name}.pt", weights_only=True) for name in ("network", "head")}
    form = facts["input"]
    plain = backbones.build(facts["backbone"], form["channels"], torch.Generator())
    network = branches.rebuild(plain, facts["structure"], torch.zeros(2, form["channels"], *form["size"]))
    network.load_state_dict(weights["network"])
    return network.eval(), rebuild_head(facts["head"], weights["head"]), facts


@pytest.mark.parametrize("make", [base_learner, two_stages])
def test_weights_are_all_that_a_classifier_needs(make: Callable[[], Any], tmp_path: Path) -> None:
    learner, images = make(), fresh(SEEN)
    assert learner.export(tmp_path / "weights", "state-dict") == tmp_path / "weights"
    network, head, facts = _rebuilt(tmp_path / "weights")
    mean, std = (torch.tensor(facts["input"][name])[:, None, None] for name in ("mean", "std"))
    with torch.no_grad():
        logits = head(network((images.images / 255 - mean) / std))
    torch.testing.assert_close(logits, learner.knowledge.logits(images), atol=1e-4, rtol=1e-4)
    assert [entry["id"] for entry in facts["classes"]] == list(range(len(learner.classes)))
    assert [entry["name"] for entry in facts["classes"]] == list(learner.classes.names)


def test_classifier_takes_bytes_and_floats() -> None:
    images = fresh(SEEN)
    classifier = Classifier(two_stages().knowledge)
    with torch.no_grad():
        logits, probabilities = classifier(images.images)
        from_floats, _ = classifier(images.images.float() / 255)
    torch.testing.assert_close(logits, two_stages().knowledge.logits(images), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(probabilities, logits.softmax(dim=1))
    torch.testing.assert_close(from_floats, logits)


def test_onnx_of_floats_says_what_predict_says(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = importlib.import_module("onnxruntime")
    learner, images = two_stages(), fresh(SEEN)
    file = learner.export(tmp_path / "classifier.onnx", pixels="float32")
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.type, given.shape[1:]) == ("images", "tensor(float)", [1, 8, 8])
    pixels = images.images.numpy().astype(np.float32) / 255
    logits, probabilities = session.run(["logits", "probabilities"], {"images": pixels})
    np.testing.assert_allclose(logits, learner.knowledge.logits(images).numpy(), rtol=1e-4, atol=1e-4)
    predicted = learner.predict(images)
    assert probabilities.argmax(axis=1).tolist() == [prediction.id for prediction in predicted]
    np.testing.assert_allclose(probabilities.max(axis=1), [p.probability for p in predicted], atol=1e-4)
    facts = session.get_modelmeta().custom_metadata_map
    assert [entry["name"] for entry in json.loads(facts["classes"])] == list(learner.classes.names)
    assert json.loads(facts["input"])["size"] == [8, 8]
    assert [entry.name for entry in tmp_path.iterdir()] == ["classifier.onnx"]


def test_refusals_leave_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").touch()
    learner = base_learner()
    before = sorted(tmp_path.rglob("*"))
    attempts: list[tuple[Path, dict[str, Any], str]] = [
        (tmp_path / "full", {"format": "state-dict"}, r"full holds something already; give the name of a new folder\."),
        (tmp_path / "full", {}, r"full cannot be written; give the name of a file in a folder that exists\."),
        (tmp_path / "no" / "a.onnx", {}, r"a\.onnx cannot be written; give the name of a file"),
        (tmp_path / "no" / "a", {"format": "state-dict"}, r"a cannot be written \(No such file or directory\)"),
        (tmp_path / "a", {"format": "zip"}, "no export format 'zip'; write 'onnx' or 'state-dict'"),
        (tmp_path / "a", {"pixels": "int8"}, "type 'int8'; write 'uint8' or 'float32'"),
    ]
    for path, options, message in attempts:
        with pytest.raises(InlayError, match=message):
            learner.export(path, **options)
    with pytest.raises(InlayError, match="knows no classes yet; call fit"):
        quick_learner().export(tmp_path / "a.onnx")
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InlayError, match=r"needs the package onnx; write pip install 'inlay\[onnx\]'\.$"):
        base_learner().export(tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
