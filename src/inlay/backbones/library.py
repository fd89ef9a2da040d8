"""Libraries that are only needed for the networks they bring."""

from collections.abc import Iterator
from contextlib import contextmanager

from inlay.errors import InlayError

__all__ = ["first_words", "missing_library", "needing"]

_MOST_CHARACTERS = 200


@contextmanager
def needing(library: str) -> Iterator[None]:
    """Run a block that imports an optional library.

    Args:
        library: Name of the package and of the extra that installs it.

    Raises:
        InlayError: If the import fails because the library, or torchvision, is missing or broken.
    """
    try:
        yield
    # A torchvision that was built for another torch raises RuntimeError where it is imported.
    except (ImportError, RuntimeError) as error:
        raise missing_library(library, error) from error


def missing_library(library: str, error: Exception) -> InlayError:
    """Return the error for a library that cannot be imported for the reason given."""
    return InlayError(
        f"Backbones of {library} need the package {library}, and a torchvision that fits torch where it is installed: "
        f'run pip install "inlay[{library}]" ({first_words(error)}).'
    )


def first_words(error: Exception) -> str:
    """Return what an error says, on one line and no longer than a sentence may be."""
    words = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return words if len(words) <= _MOST_CHARACTERS else f"{words[:_MOST_CHARACTERS].rstrip()} …"
