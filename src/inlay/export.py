"""A classifier on its own: as one ONNX file, or as plain weights of torch."""

import copy
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from inlay.branches.onnx import export_onnx
from inlay.data.normalisation import Normalisation
from inlay.engine.checkpoint import sync_folder, writing
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.heads import describe_head
from inlay.knowledge import InputForm, Knowledge
from inlay.output_file import refuse_run_folder, refuse_unnamed

__all__ = ["Classifier", "ExportFormat", "Pixels", "export"]

ExportFormat = Literal["onnx", "state-dict"]
Pixels = Literal["uint8", "float32"]

_OUTPUTS = ("logits", "probabilities")
_CLASS_FACTS = ("id", "name", "stage", "kind", "status")
# What the files say of the classifier beside its classes; the rest of a stage is the run's own.
_FACTS = ("input", "backbone", "architecture", "structure", "twin")


class Classifier(nn.Module):
    """Network and head behind one call, with the normalisation inside.

    Args:
        knowledge: What is known; it is copied to the CPU, in eval mode.
    """

    def __init__(self, knowledge: Knowledge) -> None:
        super().__init__()
        self.network = copy.deepcopy(knowledge.network).cpu()
        self.head = copy.deepcopy(knowledge.classifier).cpu()
        self._normalise: Normalisation = knowledge.form.normalise
        self.eval()

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and probabilities, [N, K] each, of images [N, C, H, W] in uint8, or in floats from 0 to 1."""
        scaled = images if images.is_floating_point() else images.float() / 255
        logits: Tensor = self.head(self.network(self._normalise(scaled)))
        return logits, logits.softmax(dim=1)


def export(knowledge: Knowledge, path: Path, form: ExportFormat, pixels: Pixels) -> None:
    """Write a classifier that needs no run folder; what fails leaves nothing behind.

    "onnx" writes one file with the input "images" [N, C, H, W] and the outputs "logits" and "probabilities", [N, K]
    each; its metadata say "classes" and "input" as JSON. "state-dict" writes a folder of `network.pt` and `head.pt`
    for `torch.load`, and `classes.json` with classes, input, the structure that `inlay.branches.rebuild` reads, and the
    head that `inlay.heads.rebuild_head` reads.

    Args:
        knowledge: What is known; it is not changed.
        path: File to write or to replace, or a new or empty folder.
        form: "onnx" or "state-dict".
        pixels: Type of the images of an ONNX file: "uint8" in 0..255, or "float32" in 0..1.

    Raises:
        InlayError: If a package is missing, the network cannot be exported, or the path cannot be written.
    """
    if form not in ("onnx", "state-dict"):
        raise InlayError(f"There is no export format {form!r}; write 'onnx' or 'state-dict'.")
    if pixels not in ("uint8", "float32"):
        raise InlayError(f"Pixels cannot be of type {pixels!r}; write 'uint8' or 'float32'.")
    refuse_run_folder(path)
    classifier, facts = Classifier(knowledge), knowledge.to_files()[1]
    # Not all that the registry knows: the places of images are nobody's business.
    classes = [{name: getattr(entry, name) for name in _CLASS_FACTS} for entry in knowledge.registry]
    described = {"classes": classes, **{name: facts[name] for name in _FACTS}, "head": describe_head(classifier.head)}
    if form == "onnx":
        _write_onnx(classifier, _noise(knowledge.form, pixels), path, described)
    else:
        _write_weights(classifier, path, described)


def _noise(form: InputForm, pixels: Pixels) -> Tensor:
    levels = torch.randint(256, (2, form.channels, *form.size), generator=generator(0, "export"), dtype=torch.uint8)
    return levels if pixels == "uint8" else levels.float() / 255


def _write_onnx(classifier: Classifier, images: Tensor, path: Path, described: dict[str, object]) -> None:
    if path.is_dir() or not path.parent.is_dir():
        raise InlayError(f"{path} cannot be written; give the name of a file in a folder that exists.")
    with writing(path), tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        unnamed, finished = Path(folder) / "unnamed.onnx", Path(folder) / path.name
        export_onnx(classifier, {"images": images}, unnamed)
        _name(unnamed, finished, described)
        os.replace(finished, path)
        sync_folder(path.parent)


def _name(source: Path, target: Path, described: dict[str, object]) -> None:
    """Give outputs their names and the file its metadata."""
    import onnx

    model = onnx.load(source)
    names = dict(zip([output.name for output in model.graph.output], _OUTPUTS, strict=True))
    for value in model.graph.output:
        value.name = names[value.name]
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [names.get(value, value) for value in values]
    metadata = {"classes": described["classes"], "input": described["input"]}
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in metadata.items()})
    onnx.checker.check_model(model)
    with open(target, "xb") as file:
        file.write(model.SerializeToString())
        file.flush()
        os.fsync(file.fileno())


def _write_weights(classifier: Classifier, path: Path, described: dict[str, object]) -> None:
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise InlayError(f"{path} holds something already; give the name of a new folder.")
    refuse_unnamed(path)
    unfinished = path.with_name(f".{path.name}.exporting")
    with writing(path):
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir()
        try:
            for name, module in (("network", classifier.network), ("head", classifier.head)):
                # Through memory, as torch does not say that a disk is full.
                torch.save(module.state_dict(), content := io.BytesIO())
                (unfinished / f"{name}.pt").write_bytes(content.getbuffer())
            (unfinished / "classes.json").write_text(json.dumps(described, indent=1) + "\n")
            os.rename(unfinished, path)
        except BaseException:
            shutil.rmtree(unfinished)
            raise
        sync_folder(path.parent)
