"""Memory of the host: what tensors on the CPU leave is kept for the next ones."""

import ctypes
import os
from functools import cache

__all__ = ["keep_freed_memory"]

# Names of the parameters in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
# Larger blocks, such as decoded images, go back to the system as soon as they are free. Older versions of glibc refuse
# more than the second.
_LARGEST_BLOCKS = (2**28, 2**25)
_LARGEST_REST = 2**30
_ENVIRONMENT = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> bool:
    """Tell the C library, once for this process, to keep the memory of freed tensors instead of giving it back.

    By default glibc gives large blocks, and the end of its heap, back to the system as soon as they are free. When they
    are asked for again, each page is cleared at its first touch, which can take longer than computing what a network
    puts there. At most 1 GiB is kept.

    Returns:
        Whether it was told so: not if the user has set this in the environment, or if the C library is another.
    """
    if any(name in os.environ for name in _ENVIRONMENT):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    # Not one without the other: either ends the growth by which glibc suits both to what is freed.
    return any(mallopt(_MMAP_THRESHOLD, size) for size in _LARGEST_BLOCKS) and bool(
        mallopt(_TRIM_THRESHOLD, _LARGEST_REST)
    )
