"""The images of a stage, found again by their pixels, and small pictures of them."""

import io
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from inlay.data.decode import decode_image
from inlay.data.images import Images, fingerprint_of
from inlay.errors import InlayError
from inlay.knowledge import Knowledge

__all__ = ["StageImages", "folder_of_stage"]

LONGEST_SIDE = 256
"""Most pixels of a side of a small picture."""

_IMAGES_AT_ONCE = 1024


class StageImages:
    """The images that a stage has learned, in its order.

    Args:
        knowledge: What the stage left behind.
        images: Images of the right form, those of the stage among them.
        place: What the images are called in errors.

    Attributes:
        fingerprints: Fingerprint of each image of the stage.
        found: Positions of the stage whose image is there, int64 [n].

    Raises:
        InlayError: If none is there.
    """

    def __init__(self, knowledge: Knowledge, images: Images, place: str) -> None:
        self.fingerprints = knowledge.record.fingerprints
        self._form = knowledge.form
        where = {print_: index for index, print_ in reversed(list(enumerate(images.fingerprints())))}
        self._index = {position: where[print_] for position, print_ in enumerate(self.fingerprints) if print_ in where}
        if not self._index:
            raise InlayError(
                f"None of the {len(self.fingerprints)} images of stage {knowledge.record.index} is in {place}; write "
                f"--images with the folder they are in."
            )
        self._images = images
        # Decoding changes the filters of warnings, which all threads share.
        self._decoding = threading.Lock()
        self.found = torch.tensor(sorted(self._index))

    def __len__(self) -> int:
        return len(self.fingerprints)

    def name(self, position: int) -> str:
        """Return where an image came from; "" if it is not there."""
        index = self._index.get(position)
        return "" if index is None else self._images.names[index]

    def features(self, knowledge: Knowledge, on_progress: Callable[[int, int], None]) -> Tensor:
        """Compute the features of the images that are there.

        Args:
            knowledge: Whose network to use.
            on_progress: Called with the number of images done and of all.

        Returns:
            [N, D] on the CPU; rows of images that are not there are NaN.
        """
        places = self.found.tolist()
        parts: list[Tensor] = []
        for first in range(0, len(places), _IMAGES_AT_ONCE):
            on_progress(first, len(places))
            chosen = [self._index[place] for place in places[first : first + _IMAGES_AT_ONCE]]
            parts.append(knowledge.features(self._images.select(chosen)).cpu())
        on_progress(len(places), len(places))
        known = torch.cat(parts)
        whole = known.new_full((len(self), known.shape[1]), torch.nan)
        whole[self.found] = known
        return whole

    def pixels(self, positions: Sequence[int]) -> Tensor:
        """Return images that are there as the network sees them, uint8 [n, C, H, W] on the CPU."""
        indices = torch.tensor([self._index[position] for position in positions], dtype=torch.int64)
        pixels = self._images.pixels
        return pixels[indices].cpu() if isinstance(pixels, Tensor) else pixels.read(indices)

    def picture(self, position: int) -> bytes:
        """Return a PNG of an image, no side longer than 256 pixels: from its file, or else as the network sees it.

        Raises:
            InlayError: If there is no such image, or its file has changed.
        """
        index = self._index.get(position)
        if index is None:
            raise InlayError(f"There is no image {position}; write one from 0 to {len(self) - 1} that was found.")
        name = self._images.names[index]
        if os.path.isfile(name):
            with self._decoding:
                seen = decode_image(Path(name), self._form.size, self._form.channels)
                picture = decode_image(Path(name))
            if fingerprint_of(seen.numpy()) != self.fingerprints[position]:
                raise InlayError(f"'{name}' has changed since the page was opened; start `inlay review` again.")
            return _png(picture)
        return _png(self.pixels([position])[0])


def folder_of_stage(knowledge: Knowledge) -> Path:
    """Return the folder, or file, that the images of a stage were read from.

    For images that were read one by one it is the folder of those that stand for the classes.

    Raises:
        InlayError: If it is not known or no longer there.
    """
    source = knowledge.record.source
    if not source:
        entries = knowledge.registry.of_stage(knowledge.record.index)
        paths = [medoid.path for entry in entries for medoid in entry.medoids if os.path.isabs(medoid.path)]
        source = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    folder = Path(source)
    # Images that share no folder but that of all files are not looked for in all files.
    if not source or not folder.exists() or folder == folder.parent:
        raise InlayError(
            f"The images of stage {knowledge.record.index} are not where they were; write --images with the folder "
            f"they are in."
        )
    return folder


def _png(pixels: Tensor) -> bytes:
    """Return an image, uint8 [C, H, W], as a small PNG."""
    array = pixels.permute(1, 2, 0).contiguous().numpy()
    picture = Image.fromarray(array[:, :, 0] if array.shape[2] == 1 else array)
    picture.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()
