import importlib
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest

import inlay as library
from inlay.data import load

Inlay = Callable[..., CompletedProcess[str]]
Refused = Callable[..., str]


def test_an_exported_file_says_what_predict_says(
    inlay: Inlay, discovered: Path, pictures: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    runtime = importlib.import_module("onnxruntime")
    file, folder = tmp_path / "shop.onnx", tmp_path / "weights"
    said = inlay("export", discovered, "--onnx", file, "--weights", folder)
    assert (said.returncode, said.stdout.splitlines(), said.stderr) == (0, [str(file), str(folder)], "")
    session = runtime.InferenceSession(file, providers=["CPUExecutionProvider"])
    names = [entry["name"] for entry in json.loads(session.get_modelmeta().custom_metadata_map["classes"])]
    assert session.get_inputs()[0].type == "tensor(uint8)"
    images = load(pictures / "test", size=8, channels=3, cache=False)
    _, probabilities = session.run(None, {"images": images.images.numpy()})
    rows = [json.loads(line) for line in inlay("predict", discovered, pictures / "test", "--json").stdout.splitlines()]
    assert [names[best] for best in probabilities.argmax(axis=1)] == [row["name"] for row in rows]
    np.testing.assert_allclose(probabilities.max(axis=1), [row["probability"] for row in rows], atol=1e-4)
    assert sorted(entry.name for entry in folder.iterdir()) == ["classes.json", "head.pt", "network.pt"]
    assert [entry["name"] for entry in json.loads((folder / "classes.json").read_text())["classes"]] == names
    assert names == list(library.load(discovered).classes.names)


@pytest.mark.parametrize("option", ["--weights", "--clusters"])
def test_the_folder_one_is_in_cannot_be_made(
    refused: Refused, discovered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    sentence = refused(discovered, "export", discovered, option, ".")
    assert sentence == ". is no name for a folder to make; give one, such as exported."
    with pytest.raises(library.InlayError, match="is no name for a folder to make"):
        library.load(discovered).save(".")
    assert not any(Path().iterdir())


def test_refusals(refused: Refused, fitted: Path, tmp_path: Path) -> None:
    sentence = refused(fitted, "export", fitted)
    assert sentence == (
        "There is nothing to export to; write --onnx FILE, --weights FOLDER, --clusters FOLDER, --csv FILE or "
        "--label-studio FILE."
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    assert "holds something already" in refused(fitted, "export", fitted, "--weights", tmp_path / "full")
    assert "lies in the run folder" in refused(fitted, "export", fitted, "--weights", fitted)
    assert "cannot be written" in refused(fitted, "export", fitted, "--onnx", tmp_path / "no" / "a.onnx")
    assert "is not an inlay run folder" in refused(fitted, "export", tmp_path, "--onnx", tmp_path / "a.onnx")
