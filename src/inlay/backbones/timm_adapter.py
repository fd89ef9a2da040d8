"""Networks of timm by their names there: weights of timm's own, or from a local file or folder."""

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from inlay.backbones.expectation import Expected
from inlay.backbones.library import first_words, needing
from inlay.errors import InlayError

__all__ = ["expected", "load", "shown", "skeleton"]

_USUAL_FILES = ("model.safetensors", "pytorch_model.bin")
_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")
# What a folder may say of its weights; where they lie is not for it to say.
_ABOUT_WEIGHTS = ("mean", "std", "input_size", "fixed_input_size", "classifier", "first_conv", "num_classes")


def expected(spelled: str) -> Expected:
    """Return what a network expects of images, without building it.

    Args:
        spelled: A name of timm, with or without a tag; "NAME@PATH" for weights from a file or folder.

    Raises:
        InlayError: If timm is missing, has no such network, or no weights for it, or there is no such path.
    """
    name, path = _name_and_path(spelled)
    weights = None if path is None else _weights_file(path)
    found = _about(_timm(), name, path)
    if weights is None and not any(found.get(place) for place in ("url", "hf_hub_id", "file")):
        raise InlayError(f"timm has no weights for {name!r}; name a file or folder with them: timm:{name}@FOLDER.")
    return Expected(found["input_size"][-1], tuple(found["mean"]), tuple(found["std"]))


def load(spelled: str, size: tuple[int, int]) -> tuple[nn.Module, dict[str, Any]]:
    """Build a network with its weights, without a head, dropout or stochastic depth, in eval mode.

    Args:
        spelled: As for `expected`.
        size: Height and width of the images.

    Returns:
        A network from images [N, 3, H, W] to features [N, D], and what `skeleton` builds it from.

    Raises:
        InlayError: As for `expected`, or if the weights cannot be had, do not fit, or not for this size.
    """
    expected(spelled)
    timm = _timm()
    name, path = _name_and_path(spelled)
    about = _about(timm, name, path)
    architecture: dict[str, Any] = {"name": name, "img_size": None}
    if about.get("fixed_input_size"):
        architecture["img_size"] = list(size)
    try:
        if path is None:
            network = _created(timm, architecture, pretrained=True)
        else:
            network = _with_local_weights(timm, architecture, _weights_file(path), about)
    # Weights come from many places through several libraries, which share no class of errors.
    except Exception as error:
        raise InlayError(
            f"timm cannot load the weights of {spelled!r} ({first_words(error)}); without network name a file or "
            f"folder that has them: timm:{name}@FOLDER."
        ) from error
    return network, architecture


def skeleton(architecture: Mapping[str, Any]) -> nn.Module:
    """Build the network that `load` described with arbitrary weights; nothing is read or fetched.

    Raises:
        InlayError: If timm is missing, or knows the network no more.
    """
    timm = _timm()
    # Such names are addresses, from which timm would fetch a description.
    if ":" in architecture["name"]:
        raise InlayError(f"timm knows no network {architecture['name']!r}; the run was changed after it was written.")
    try:
        return _created(timm, architecture, pretrained=False)
    except (RuntimeError, TypeError) as error:
        raise InlayError(
            f"This timm ({timm.__version__}) cannot build {architecture['name']!r} ({first_words(error)}); install "
            f"the version that the run was made with."
        ) from error


def shown(spelled: str) -> str:
    """Return the name without the place of the weights, which is of this machine."""
    return _name_and_path(spelled)[0]


def _timm() -> Any:
    with needing("timm"):
        return importlib.import_module("timm")


def _name_and_path(spelled: str) -> tuple[str, Path | None]:
    name, at, path = spelled.partition("@")
    if not name or (at and not path):
        raise InlayError(
            f"A backbone cannot be called 'timm:{spelled}'; write timm:NAME, or timm:NAME@PATH for weights from a file "
            f"or folder."
        )
    return name, Path(path).expanduser() if at else None


def _weights_file(path: Path) -> Path:
    if path.is_file():
        return path
    if not path.is_dir():
        raise InlayError(f"There is no file or folder '{path}' with weights; check the spelling of its path.")
    usual = [path / name for name in _USUAL_FILES if (path / name).is_file()]
    files = usual[:1] or sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES)
    if len(files) != 1:
        found = "none" if not files else f"{len(files)}, such as {files[0].name} and {files[1].name}"
        raise InlayError(f"The folder '{path}' should hold one file of weights, but holds {found}; name the file.")
    return files[0]


def _about(timm: Any, name: str, path: Path | None) -> dict[str, Any]:
    """What timm knows of the weights of a network, and what the folder says otherwise."""
    try:
        known = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise InlayError(
            f"timm cannot find {name!r} ({first_words(error)}); timm.list_models() lists its networks."
        ) from error
    if known is None:
        alike = timm.list_models(f"*{name.partition('.')[0][:6]}*")[:3]
        such_as = f", such as {', '.join(alike)}" if alike else ""
        raise InlayError(f"timm knows no network {name!r}; timm.list_models() lists those that it knows{such_as}.")
    about: dict[str, Any] = known.to_dict()
    config = None if path is None else path / "config.json"
    if config is None or not config.is_file():
        return about
    try:
        own = json.loads(config.read_text(encoding="utf-8"))["pretrained_cfg"]
        return about | {key: own[key] for key in _ABOUT_WEIGHTS if key in own}
    except (ValueError, KeyError, TypeError) as error:
        raise InlayError(
            f"'{config}' is not what timm writes beside weights ({first_words(error)}); repair or delete it."
        ) from error


def _with_local_weights(timm: Any, architecture: Mapping[str, Any], file: Path, about: Mapping[str, Any]) -> nn.Module:
    """Build a network with the weights of a file; those of its classifier may be in it or not, the others must be."""
    weights = dict(timm.models.load_state_dict(str(file)))
    named = about.get("classifier") or ()
    classifiers = (named,) if isinstance(named, str) else tuple(named)
    heads = [weights[f"{name}.weight"] for name in classifiers if f"{name}.weight" in weights]
    # With as many classes as the file has, timm lets no weight be missing; its converters want to see all of them.
    classes = len(heads[0]) if heads else 0
    overlay: dict[str, Any] = {key: about[key] for key in _ABOUT_WEIGHTS if key in about}
    overlay |= {"state_dict": weights, "num_classes": classes, "label_offset": 0, "custom_load": False, "source": None}
    whole = _created(timm, architecture, classes, pretrained=True, pretrained_cfg_overlay=overlay)
    network = _created(timm, architecture, pretrained=False)
    kept = {name: tensor for name, tensor in whole.state_dict().items() if name.rpartition(".")[0] not in classifiers}
    network.load_state_dict(kept, strict=True)
    return network


def _created(timm: Any, architecture: Mapping[str, Any], classes: int = 0, **options: Any) -> nn.Module:
    size = architecture["img_size"]
    # timm draws first weights from torch's global generator, which is not ours to move.
    with torch.random.fork_rng(devices=[]):
        network: nn.Module = timm.create_model(
            architecture["name"], num_classes=classes, img_size=None if size is None else tuple(size), **options
        )
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(getattr(module, "drop_prob", None), float):
            setattr(module, "drop_prob", 0.0)  # noqa: B010 - torch's types know only tensors and modules here
    return network.float().eval()
