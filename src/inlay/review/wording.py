"""How numbers and names are written for people to read, on the page and in the terminal."""

from collections.abc import Sequence
from typing import Final

__all__ = ["BASELINE_NAMES", "NOTHING", "counted", "duration", "joined", "percent"]

NOTHING: Final = "–"

BASELINE_NAMES: Final = {
    "kmeans_pixels": "k-means on pixels",
    "kmeans_features": "k-means on base features",
    "forgetful": "Forgetful fine-tuning",
    "supervised": "Supervised ceiling",
}


def percent(fraction: float | None) -> str:
    """A fraction as a percentage with one decimal, or a dash where there is none."""
    return NOTHING if fraction is None else f"{100 * fraction:.1f}%"


def duration(seconds: float) -> str:
    """A time span in the units that suit its length."""
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def counted(number: int, singular: str, plural: str) -> str:
    """A number with its noun, with commas between the thousands."""
    return f"{number:,} {singular if number == 1 else plural}"


def joined(names: Sequence[str], limit: int) -> str:
    """Names with commas between them, those past the limit only counted."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit:,} more"
