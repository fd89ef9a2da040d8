"""Image models of Hugging Face transformers: from a local folder, the cache or the hub."""

import importlib
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from inlay.backbones.expectation import Expected
from inlay.backbones.library import first_words, missing_library, needing
from inlay.errors import InlayError

__all__ = ["TransformersFeatures", "expected", "load", "shown", "skeleton"]

_USUAL_SIZE = 224
_PREPROCESSING = "preprocessor_config.json"


class TransformersFeatures(nn.Module):
    """What the head of an image classifier of transformers would see.

    Args:
        model: Image classifier without labels, whose logits are its features.
        interpolate: Whether its position embeddings are interpolated to the size of the images.
    """

    def __init__(self, model: nn.Module, interpolate: bool) -> None:
        super().__init__()
        self.model = model
        self.interpolate = interpolate

    def forward(self, images: Tensor) -> Tensor:
        """Map images [N, 3, H, W] to features [N, D]."""
        options = {"interpolate_pos_encoding": True} if self.interpolate else {}
        features: Tensor = self.model(pixel_values=images, **options).logits
        return features.flatten(1)


def expected(spelled: str) -> Expected:
    """Return what a model expects of images, from its files for preprocessing, without building it.

    Args:
        spelled: A folder made by `save_pretrained`, or the name of a model on the hub.

    Raises:
        InlayError: If transformers is missing, or the model has no such files or takes other channels than RGB.
    """
    transformers = _transformers()
    place = _place(spelled)
    if isinstance(place, Path) and not (place / _PREPROCESSING).is_file():
        raise InlayError(
            f"The folder '{place}' has no {_PREPROCESSING}, which says how its model wants images scaled; copy it from "
            f"where the model came from."
        )
    with _loading(spelled, _PREPROCESSING):
        # As text: the classes that read it want torchvision.
        file = transformers.utils.cached_file(place, _PREPROCESSING, **_only_local(place))
        found: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    if found.get("do_flip_channel_order"):
        raise InlayError(
            f"The model {spelled!r} takes its channels as blue, green, red, and images here are red, green, blue; take "
            f"another model, such as google/vit-base-patch16-224."
        )
    mean, std = found.get("image_mean"), found.get("image_std")
    if mean is None or std is None or found.get("do_normalize") is False:
        mean, std = (0.0,) * 3, (1.0,) * 3
    # Models see levels times this factor, which is 1/255 for nearly all, and images here are in 0..1.
    scale = 255 * found.get("rescale_factor", 1 / 255) if found.get("do_rescale", True) else 255.0
    size = _side(found.get("crop_size")) or _side(found.get("size")) or _image_size(_config(transformers, spelled))
    return Expected(size or _USUAL_SIZE, tuple(value / scale for value in mean), tuple(value / scale for value in std))


def load(spelled: str, size: tuple[int, int]) -> tuple[TransformersFeatures, dict[str, Any]]:
    """Build a model with its weights, without a head or dropout, in eval mode.

    Args:
        spelled: As for `expected`.
        size: Height and width of the images.

    Returns:
        A network from images [N, 3, H, W] to features [N, D], and what `skeleton` builds it from.

    Raises:
        InlayError: If transformers is missing, or the model is not there, incomplete, or no image classifier.
    """
    transformers = _transformers()
    config, place = _config(transformers, spelled), _place(spelled)
    with _loading(spelled, "weights of an image model"), _quiet(transformers), torch.random.fork_rng(devices=[]):
        model, report = transformers.AutoModelForImageClassification.from_pretrained(
            place, config=config, output_loading_info=True, **_safely(place)
        )
    missing = sorted(report["missing_keys"])
    if missing:
        raise InlayError(
            f"The weights of {spelled!r} lack {len(missing)} of the tensors of the model, such as {missing[0]!r}; name "
            f"a model that was saved whole."
        )
    trained_on = _image_size(config)
    asked = "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    interpolate = asked and trained_on is not None and size != (trained_on, trained_on)
    described = json.loads(config.to_json_string(use_diff=True))
    # Names of folders and of their authors' classes say nothing of the structure.
    for private in ("_name_or_path", "architectures"):
        described.pop(private, None)
    features = TransformersFeatures(model.float(), interpolate).eval()
    return features, {"config": described, "interpolate": interpolate}


def skeleton(architecture: Mapping[str, Any]) -> TransformersFeatures:
    """Build the model that `load` described with arbitrary weights; nothing is read or fetched.

    Raises:
        InlayError: If transformers is missing, or knows the model no more.
    """
    transformers = _transformers()
    options = dict(architecture["config"])
    kind = options.pop("model_type")
    try:
        with needing("transformers"), _quiet(transformers), torch.random.fork_rng(devices=[]):
            config = _without_labels_and_dropout(transformers.AutoConfig.for_model(kind, **options))
            model = transformers.AutoModelForImageClassification.from_config(config, trust_remote_code=False)
    except (ValueError, TypeError, AttributeError) as error:
        raise InlayError(
            f"This transformers ({transformers.__version__}) cannot build a model of type {kind!r} "
            f"({first_words(error)}); install the version that the run was made with."
        ) from error
    return TransformersFeatures(model.float(), architecture["interpolate"]).eval()


def shown(spelled: str) -> str:
    """Return the name of a model, of a folder the last part only: where it lies is of this machine."""
    place = _place(spelled)
    return place.resolve().name if isinstance(place, Path) else place


def _transformers() -> Any:
    with needing("transformers"):
        library = importlib.import_module("transformers")
        # Parts are imported when first asked for, and may only then be found to be broken.
        assert library.AutoModelForImageClassification
    return library


def _place(spelled: str) -> Path | str:
    folder = Path(spelled).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or spelled.startswith(("/", ".", "~")) or spelled.count("/") > 1:
        raise InlayError(
            f"There is no folder '{folder}' with a model; check the spelling of its path, or write the name of a model "
            f"on the hub, such as google/vit-base-patch16-224."
        )
    return spelled


def _only_local(place: Path | str) -> dict[str, bool]:
    return {"local_files_only": isinstance(place, Path)}


def _safely(place: Path | str) -> dict[str, bool]:
    # Unless told, the library asks at the terminal whether code beside the weights may run.
    return {**_only_local(place), "trust_remote_code": False}


def _config(transformers: Any, spelled: str) -> Any:
    place = _place(spelled)
    with _loading(spelled, "config.json"):
        return _without_labels_and_dropout(transformers.AutoConfig.from_pretrained(place, **_safely(place)))


def _without_labels_and_dropout(config: Any) -> Any:
    """Without labels the head of any image classifier of transformers passes on what it is given."""
    config.id2label, config.label2id = {}, {}
    for name, value in vars(config).items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _image_size(config: Any) -> int | None:
    return _side(getattr(getattr(config, "vision_config", config), "image_size", None))


def _side(size: Any) -> int | None:
    """Read a size in any of the ways in which it is written."""
    if isinstance(size, Mapping):
        size = size.get("height") or size.get("shortest_edge")
    if isinstance(size, list | tuple):
        size = size[0]
    return int(size) if size else None


@contextmanager
def _loading(spelled: str, what: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise missing_library("transformers", error) from error
    # Files come from disk, cache or hub through several libraries, which share no class of errors.
    except Exception as error:
        raise InlayError(
            f"transformers cannot load {what} of {spelled!r} ({first_words(error)}); name a folder of an image model "
            f"with config.json, {_PREPROCESSING} and weights, or a model on the hub."
        ) from error


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep the bars and reports of the library off the terminal: what matters of them is raised."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
