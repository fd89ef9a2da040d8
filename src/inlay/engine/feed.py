"""Feeds: they bring images to the device, from its own memory, from the host's, or from disk."""

import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from inlay.data.decode import decoding_threads
from inlay.data.images import PixelReader

__all__ = [
    "Feed",
    "HostPixels",
    "JoinedPixels",
    "ResidentFeed",
    "StreamedFeed",
    "feed_of",
    "joined_pixels",
    "upload",
]

# Below this, handing a part to another thread costs as much as reading it.
_FEWEST_IMAGES_PER_PART = 8


class Feed(Protocol):
    """Brings images of one shape to a device, batch after batch."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the images arrive."""
        ...

    def batches(self, requests: Iterable[Tensor]) -> Generator[Tensor, None, None]:
        """Bring one batch for each request, in order.

        Closing the generator before its end stops everything that runs for it.

        Args:
            requests: Which images: int64 [r] on the CPU each; a tensor [steps, r] holds one request per row.

        Returns:
            uint8 [r, C, H, W] on the device for each request.

        Raises:
            InlayError: An image cannot be read.
        """
        ...


def upload(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; the host does not wait for what the device is still to do."""
    if device.type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


class ResidentFeed:
    """Images that live on the device.

    Requests in one tensor [steps, r] are uploaded at once, and nothing waits for the device after that.

    Args:
        images: uint8 [N, C, H, W] on the device.
    """

    def __init__(self, images: Tensor) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self._images.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self._images.device

    def batches(self, requests: Iterable[Tensor]) -> Generator[Tensor, None, None]:
        """Bring one batch for each request, in order; see `Feed.batches`."""
        if isinstance(requests, Tensor):
            requests = upload(requests, self.device)
        for request in requests:
            yield self._images.index_select(0, upload(request, self.device))


@dataclass(frozen=True, eq=False)
class HostPixels:
    """The pixels of a tensor in the memory of the host.

    Attributes:
        images: uint8 [N, C, H, W] on the CPU.
    """

    images: Tensor

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    def read(self, indices: Tensor) -> Tensor:
        """Copy some images: positions int64 [r] to uint8 [r, C, H, W]."""
        # Several threads read at a time, so each should be one: torch would start a team of threads for each.
        return torch.from_numpy(np.take(self.images.numpy(), indices.numpy(), axis=0))


@dataclass(frozen=True, eq=False)
class JoinedPixels:
    """The pixels of two readers, one after the other.

    Attributes:
        first: Reader of images.
        second: Reader of images of the same shape.
    """

    first: PixelReader
    second: PixelReader

    def __len__(self) -> int:
        return len(self.first) + len(self.second)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        return self.first.shape

    def read(self, indices: Tensor) -> Tensor:
        """Read some images: positions int64 [r] to uint8 [r, C, H, W]."""
        images = torch.empty(len(indices), *self.shape, dtype=torch.uint8)
        of_first = indices < len(self.first)
        for reader, mine, offset in ((self.first, of_first, 0), (self.second, ~of_first, len(self.first))):
            if bool(mine.any()):
                images[mine] = reader.read(indices[mine] - offset)
        return images


def joined_pixels(first: Tensor | PixelReader, second: Tensor) -> Tensor | PixelReader:
    """Return images followed by others: a tensor if the first ones are one, otherwise a reader.

    Args:
        first: uint8 [N, C, H, W], or a reader of images that are not in memory.
        second: uint8 [M, C, H, W], on the CPU.
    """
    if isinstance(first, Tensor):
        return torch.cat([first, second.to(first.device)])
    return JoinedPixels(first, HostPixels(second))


class StreamedFeed:
    """Images that are read while earlier ones are used, so that only a few are in memory.

    Threads read parts of the next `ahead` requests. On CUDA they write to pinned memory, from where a stream of its
    own copies whole batches. Memory holds at most `ahead` + 1 requests: those ahead, and the one in use.

    Args:
        pixels: Where the images come from.
        device: Where they are brought.
        ahead: How many requests are read while one is used, at least 1.
        workers: Number of threads; None takes one per core, at most 16.

    Attributes:
        seconds_waiting: How long `batches` waited for images that were not there yet, over all calls.

    Raises:
        ValueError: `ahead` or `workers` is below 1.
    """

    def __init__(self, pixels: PixelReader, device: torch.device, ahead: int = 2, workers: int | None = None) -> None:
        if ahead < 1 or (workers is not None and workers < 1):
            raise ValueError(f"ahead and workers must be at least 1; got {ahead} and {workers}")
        self.seconds_waiting = 0.0
        self._pixels = pixels
        self._device = device
        self._ahead = ahead
        self._workers = workers or decoding_threads()

    def __len__(self) -> int:
        return len(self._pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every image."""
        return self._pixels.shape

    @property
    def device(self) -> torch.device:
        """Where the images are brought."""
        return self._device

    def batches(self, requests: Iterable[Tensor]) -> Generator[Tensor, None, None]:
        """Bring one batch for each request, in order; see `Feed.batches`."""
        pool = ThreadPoolExecutor(self._workers, thread_name_prefix="inlay-feed")
        on_cuda = self._device.type == "cuda"
        stream = torch.cuda.Stream(self._device) if on_cuda else None  # type: ignore[no-untyped-call]
        try:
            coming = (self._begun(request, pool) for request in requests)
            yield from self._delivered(coming, stream)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _begun(self, request: Tensor, pool: ThreadPoolExecutor) -> "_Reading":
        # Made here and not by the threads, because a CUDA graph that is being captured bears no allocation elsewhere.
        buffer = torch.empty(len(request), *self.shape, dtype=torch.uint8, pin_memory=self._device.type == "cuda")

        def read(target: Tensor, indices: Tensor) -> None:
            # numpy copies with one thread, where torch would start a team of threads for each of these.
            target.numpy()[:] = self._pixels.read(indices).numpy()

        size = max(_FEWEST_IMAGES_PER_PART, -(-len(request) // self._workers))
        parts = zip(torch.split(buffer, size), torch.split(request, size), strict=True)
        return _Reading(buffer, [pool.submit(read, target, indices) for target, indices in parts])

    def _delivered(self, coming: Iterator["_Reading"], stream: "torch.cuda.Stream | None") -> Iterator[Tensor]:
        ahead = deque(islice(coming, self._ahead))
        while ahead:
            began = time.perf_counter()
            ahead[0].wait()
            self.seconds_waiting += time.perf_counter() - began
            _start_copies(ahead, stream)
            ahead.extend(islice(coming, 1))
            # Taken and handed out in one go, so that nothing here holds on to a batch that was handed out.
            yield ahead.popleft().handed_out()


def _start_copies(readings: "Iterable[_Reading]", stream: "torch.cuda.Stream | None") -> None:
    if stream is not None:
        for reading in readings:
            reading.copy_if_read(stream)


class _Reading:
    """One request under way."""

    def __init__(self, buffer: Tensor, parts: list["Future[None]"]) -> None:
        self._images = buffer
        self._parts = parts
        self._copied: torch.cuda.Event | None = None

    def wait(self) -> None:
        for part in self._parts:
            part.result()

    def copy_if_read(self, stream: "torch.cuda.Stream") -> None:
        """Start the copy to the device unless it has begun, or parts are missing or failed."""
        if self._copied is None and all(part.done() and part.exception() is None for part in self._parts):
            with torch.cuda.stream(stream):
                self._images = self._images.to(stream.device, non_blocking=True)
                self._copied = stream.record_event()

    def handed_out(self) -> Tensor:
        """The images, ready for the present stream."""
        if self._copied is not None:
            present = torch.cuda.current_stream(self._images.device)
            present.wait_event(self._copied)
            self._images.record_stream(present)
        return self._images


def feed_of(pixels: Tensor | PixelReader, device: torch.device, margin: float = 0.5) -> Feed:
    """Choose how images are brought to a device.

    Args:
        pixels: uint8 [N, C, H, W], or a reader of images that are not in memory, which are always streamed.
        device: Where the images are needed.
        margin: A tensor lives on a CUDA device if it takes at most this share of the memory that is free there, half
            of it unless told otherwise; the rest is for networks and activations. A larger one is streamed from
            the memory of the host. On the CPU it stays where it is.
    """
    if not isinstance(pixels, Tensor):
        return StreamedFeed(pixels, device)
    there = pixels.device.type == device.type and device.index in (None, pixels.device.index)
    if there or device.type == "cpu" or pixels.nbytes <= margin * _free_memory(device):
        return ResidentFeed(pixels.to(device))
    return StreamedFeed(HostPixels(pixels), device)


def _free_memory(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    # What torch keeps for later tensors is free as well.
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
