"""Images of learned classes that a run may keep, beside its folder and only if asked to."""

import hashlib
import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from inlay.data.images import Images
from inlay.engine.checkpoint import write_whole, writing
from inlay.engine.world import World
from inlay.errors import InlayError
from inlay.increments.herding import herd
from inlay.knowledge import InputForm, Knowledge, StageRecord

__all__ = ["Exemplars", "exemplar_folder", "keep_exemplars", "kept_exemplars"]

_ARRAYS = ("images", "classes", "identity")


@dataclass(frozen=True, eq=False)
class Exemplars:
    """Images that stand for classes.

    Attributes:
        images: Pixels, uint8 [N, C, H, W].
        classes: Ids of their classes, int64 [N].
    """

    images: Tensor
    classes: Tensor

    def __len__(self) -> int:
        """The number of images."""
        return len(self.classes)

    @property
    def class_count(self) -> int:
        """The number of classes that have images."""
        return int((torch.bincount(self.classes) > 0).sum())

    def fingerprint(self) -> str:
        """Return a hash of pixels and classes."""
        digest = hashlib.blake2b(self.classes.numpy().tobytes(), digest_size=16)
        digest.update(self.images.contiguous().numpy().tobytes())
        return digest.hexdigest()


def exemplar_folder(run: Path) -> Path:
    """Return the folder beside a run folder in which its exemplars lie."""
    # "." has no name.
    run = run if run.name not in ("", "..") else run.resolve()
    return run.with_name(f"{run.name}-exemplars")


def keep_exemplars(run: Path, knowledge: Knowledge, stage: StageRecord, images: Images, count: int) -> None:
    """Keep some images of each class of a stage, chosen by herding; those kept of it before are replaced.

    All processes that train together must call it; the main one writes.

    Args:
        run: Folder of the run.
        knowledge: What is known after the stage.
        stage: The stage, of labelled classes.
        images: Its labelled images; label i is the i-th class of the stage.
        count: Images of each class, at most.

    Raises:
        InlayError: If they cannot be written.
    """
    assert images.labels is not None
    ids = torch.tensor([entry.id for entry in knowledge.registry if entry.stage == stage.index])
    labels = images.labels.cpu()
    rows = torch.cat(herd(knowledge.features(images).cpu(), labels, len(ids), count))
    pixels = images.select(rows).pixels
    chosen = pixels if isinstance(pixels, Tensor) else pixels.read(torch.arange(len(rows)))
    if not World.current().is_main:
        return
    folder, content = exemplar_folder(run), io.BytesIO()
    classes, identity = ids[labels[rows]].numpy(), np.array(stage.identity)
    np.savez(content, images=chosen.cpu().numpy(), classes=classes, identity=identity)
    with writing(folder):
        folder.mkdir(exist_ok=True)
    write_whole(_file(folder, stage.index), content.getvalue())


def kept_exemplars(run: Path | None, stages: Sequence[StageRecord], form: InputForm, classes: int) -> Exemplars | None:
    """Return the images that were kept of the classes of some stages; None if there are none.

    Args:
        run: Folder of the run; None has none.
        stages: The stages; what was kept of another one of the same number does not count.
        form: What images the network takes.
        classes: Number of classes that are known.

    Raises:
        InlayError: If a file is damaged.
    """
    found = []
    for stage in stages if run is not None else ():
        file = _file(exemplar_folder(run), stage.index)  # type: ignore[arg-type]
        if file.exists():
            images, ids, identity = _read(file, form, classes)
            found += [(images, ids)] if identity == stage.identity else []
    if not found:
        return None
    return Exemplars(torch.cat([images for images, _ in found]), torch.cat([ids for _, ids in found]))


def _file(folder: Path, stage: int) -> Path:
    return folder / f"stage-{stage:03d}.npz"


def _read(file: Path, form: InputForm, classes: int) -> tuple[Tensor, Tensor, str]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            images, ids, identity = (arrays[name] for name in _ARRAYS)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise _damaged(file) from error
    fits = images.dtype == np.uint8 and images.shape[1:] == (form.channels, *form.size)
    named = ids.dtype == np.int64 and ids.shape == images.shape[:1] and ((ids >= 0) & (ids < classes)).all()
    if not fits or not named:
        raise _damaged(file)
    return torch.from_numpy(images), torch.from_numpy(ids), str(identity)


def _damaged(file: Path) -> InlayError:
    return InlayError(f"{file} is damaged; delete it to go on without the images it held.")
