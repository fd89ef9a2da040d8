"""Reading the images of a command, in one process or in several that work together."""

import os
from collections.abc import Sequence
from typing import Any

from inlay.data import open_images
from inlay.data.images import Images
from inlay.data.memory import available_memory
from inlay.engine.progress import Progress, counting
from inlay.engine.world import World
from inlay.review.wording import counted

__all__ = ["left_out", "read_images"]


def read_images(
    source: Any, progress: Progress, *, stream: bool | None, tell_left_out: bool = True, **options: Any
) -> Images:
    """Read images; with several processes the others find in the cache what the main one has decoded.

    Args:
        source: Anything that `inlay.data.load` reads.
        progress: Receiver of news.
        stream: Whether images stay on disk, see `inlay.data.open_images`.
        tell_left_out: Say how many images could not be read.
        options: Other options of `inlay.data.open_images`.

    Raises:
        InlayError: If the images cannot be read.
    """
    world = World.current()
    memory = world.share(_memory_of_a_process()) if world.parallel else None
    with world.main_first(), counting(progress, "reading images") as report:
        images = open_images(source, on_progress=report, stream=stream, memory=memory, **options)
    if images.skipped and tell_left_out:
        progress.note(left_out(images.skipped))
    return images


def left_out(skipped: Sequence[str]) -> str:
    """Say how many images could not be read, and name one."""
    return f"Left out {counted(len(skipped), 'unreadable image', 'unreadable images')}, such as {skipped[0]}."


def _memory_of_a_process() -> int:
    """Each process of a machine holds the images."""
    return available_memory() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
