"""The images of a request, in each of the forms in which they may come."""

import io
import json
import time
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header

from inlay.data import ImageSet, decode_image
from inlay.knowledge import InputForm
from inlay.serving.refusal import RefusedError
from inlay.trained_model import as_batch

__all__ = ["Given", "Upload", "decode_uploads", "read_uploads"]

FIELD = "images"
"""Field of a form that holds the images."""


class Upload(io.BytesIO):
    """An image file that was sent.

    Args:
        name: What the sender calls it; it is shown and never opened.
        content: Its bytes.
    """

    def __init__(self, name: str, content: bytes) -> None:
        super().__init__(content)
        self.name = name


Given: TypeAlias = list[Upload] | ImageSet
"""Image files that are still to be decoded, or pixels."""


def read_uploads(content_type: str, body: bytes, most_images: int) -> Given:
    """Find the images in the body of a request.

    Args:
        content_type: Header of that name: any image or application/octet-stream for one image file,
            multipart/form-data for several, application/json for pixels.
        body: The body.
        most_images: Most images of a request.

    Raises:
        RefusedError: If the body is not what the header says, or holds no image or too many.
        InlayError: If pixels do not have the shape of images.
    """
    kind, options = parse_options_header(content_type)
    kind = kind.strip()
    if kind == b"multipart/form-data":
        given: Given = _of_form(body, options.get(b"boundary"), most_images)
    elif kind == b"application/json":
        given = _of_json(body)
    elif kind.startswith(b"image/") or kind == b"application/octet-stream":
        given = [Upload("image", body)] if body else []
    else:
        raise RefusedError(
            415,
            "The Content-Type is none that is read; send image/jpeg or another image, multipart/form-data, or "
            "application/json.",
        )
    if len(given) == 0:
        raise RefusedError(422, f"There is no image in the request; send one, or several in the field {FIELD}.")
    if len(given) > most_images:
        raise _too_many(most_images)
    return given


def decode_uploads(uploads: Sequence[Upload], form: InputForm, most_seconds: float) -> ImageSet:
    """Decode image files by the rules of all images; only one thread may do so at a time.

    Args:
        uploads: The files.
        form: What images the network takes.
        most_seconds: Time after which no further image is begun.

    Raises:
        InlayError: If one is no sound image, or has more pixels than is safe to decode.
        RefusedError: If it takes too long.
    """
    end = time.monotonic() + most_seconds
    pixels = []
    for upload in uploads:
        if time.monotonic() > end:
            raise RefusedError(
                413, f"The images take more than {most_seconds:g} seconds to decode; send fewer or smaller ones."
            )
        pixels.append(decode_image(upload, form.size, form.channels))
    return ImageSet(torch.stack(pixels), tuple(upload.name for upload in uploads))


def _of_form(body: bytes, boundary: bytes | None, most_images: int) -> list[Upload]:
    uploads: list[Upload] = []
    ended = False

    def take(name: bytes | None, file: bytes | None, content: bytes) -> None:
        if name != FIELD.encode():
            raise RefusedError(422, f"The form has another field than {FIELD}; send all image files in that one.")
        if len(uploads) == most_images:
            raise _too_many(most_images)
        uploads.append(Upload((file or b"").decode("utf-8", "replace") or f"{FIELD}#{len(uploads)}", content))

    def end() -> None:
        nonlocal ended
        ended = True

    def take_file(file: File) -> None:
        file.file_object.seek(0)
        take(file.field_name, file.file_name, file.file_object.read())

    def take_field(field: Field) -> None:
        take(field.field_name, None, field.value or b"")

    try:
        # Nothing that is sent is written to the disk.
        config = {"MAX_MEMORY_FILE_SIZE": float("inf")}
        parser = FormParser("multipart/form-data", take_field, take_file, end, boundary, config=config)
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise _malformed_form() from error
    if not ended:
        raise _malformed_form()
    return uploads


def _of_json(body: bytes) -> ImageSet:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError(400, 'The request is not sound JSON; send {"pixels": [...]}.') from error
    if not isinstance(value, dict) or value.keys() != {"pixels"}:
        raise RefusedError(422, 'The request is not an object with the one key pixels; send {"pixels": [...]}.')
    try:
        numbers = np.asarray(value["pixels"], dtype=np.float64)
        # Written so that a NaN fails the test as well.
        sound = bool(((numbers >= 0) & (numbers <= 255) & (numbers == numbers.round())).all())
    except (ValueError, TypeError, OverflowError):
        sound = False
    if not sound:
        raise RefusedError(
            422,
            "The pixels are not rows of equal length of whole numbers from 0 to 255; send [H, W, C] or [N, H, W, C].",
        )
    return ImageSet.from_arrays(as_batch(numbers.astype(np.uint8)), origin="pixels")


def _too_many(most_images: int) -> RefusedError:
    return RefusedError(413, f"There are too many images in the request; send at most {most_images:,}.")


def _malformed_form() -> RefusedError:
    return RefusedError(400, "The form is damaged or cut off; send whole multipart/form-data with its boundary.")
