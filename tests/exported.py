"""A classifier taken out of inlay, compared with the learner that it comes from."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inlay import Learner
from inlay.data import ImageSet
from inlay.heads import rebuild_head

__all__ = ["exports_predict_the_same"]


def exports_predict_the_same(learner: Learner, images: ImageSet, folder: Path) -> dict[str, Any]:
    """Check the ONNX file and the plain weights, and return how the head is described beside these."""
    pytest.importorskip("onnxscript")
    runtime = importlib.import_module("onnxruntime")
    wanted = learner.knowledge.logits(images)
    file = learner.export(folder / "classifier.onnx", pixels="float32")
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images.images.numpy().astype(np.float32) / 255})
    np.testing.assert_allclose(logits, wanted.numpy(), rtol=1e-3, atol=1e-3)
    weights = learner.export(folder / "weights", format="state-dict")
    description: dict[str, Any] = json.loads((weights / "classes.json").read_text())["head"]
    head = rebuild_head(description, torch.load(weights / "head.pt"))
    torch.testing.assert_close(head(learner.knowledge.features(images)), wanted)
    return description
