"""Plots of a stage as inline SVG: the map of its images, and the score of each number of classes."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from html import escape

from inlay.review.charts import muted, svg, text

__all__ = ["class_colour", "count_curve", "plane_map"]

_MARGIN, _LEAST_HEIGHT = 0.04, 0.5
_TOP, _HEIGHT, _AXIS = 12, 170, 28
_LEFT, _RIGHT = 2.0, 98.0
_ROOM = 5.0


def class_colour(id: int) -> str:
    """Return the colour of a class, in the tone that the page gives as CSS variable --class-tone."""
    # Steps of the golden angle keep neighbouring ids apart.
    return f"hsl({id * 137.508 % 360:.1f} var(--class-tone))"


def plane_map(points: Sequence[Sequence[float]], classes: Sequence[int | None], names: Mapping[int, str]) -> str:
    """Draw images as points, coloured by their class.

    Args:
        points: Place of each image, within -1..1; upwards is positive.
        classes: Class of each image; None is drawn in grey.
        names: Name of each class, shown when the pointer rests on a point of it.

    Returns:
        One SVG element as wide as its container.
    """
    lines: dict[int | None, list[str]] = {}
    for (x, y), id in zip(points, classes, strict=True):
        lines.setdefault(id, []).append(f"M{x:.3f} {-y:.3f}h0")
    parts = []
    for id, line in sorted(lines.items(), key=lambda item: -1 if item[0] is None else item[0]):
        colour = "var(--muted)" if id is None else class_colour(id)
        name = "no class" if id is None else names.get(id, f"class {id}")
        parts.append(
            f'<path d="{"".join(line)}" style="stroke:{colour}" vector-effect="non-scaling-stroke">'
            f"<title>{escape(name)}</title></path>"
        )
    top = max((y for _, y in points), default=0.0) + _MARGIN
    height = max(top + _MARGIN - min((y for _, y in points), default=0.0), _LEAST_HEIGHT)
    box = f"{-1 - _MARGIN:.2f} {-top:.3f} {2 + 2 * _MARGIN:.2f} {height:.3f}"
    said = f"<title>Map of {len(points):,} images</title>"
    return f'<svg class="map" role="img" viewBox="{box}">{said}{"".join(parts)}</svg>'


def count_curve(curve: Sequence[tuple[int, float]], estimate: int, low: int, high: int) -> str:
    """Draw how well each number of classes fits, the interval as a band and the estimate as a line.

    Args:
        curve: Numbers of classes in order, each with its score, the higher the better; two or more.
        estimate: Estimated number of classes.
        low: Lower end of the interval.
        high: Upper end of the interval.

    Returns:
        One SVG element as wide as its container.
    """
    first, last = min(curve[0][0], low), max(curve[-1][0], high)
    scores = [score for _, score in curve]
    least, span = min(scores), max(max(scores) - min(scores), 1e-9)

    def across(k: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (k - first) / max(last - first, 1)

    def down(score: float) -> float:
        return _TOP + _HEIGHT * (1 - (score - least) / span)

    band = (
        f'<rect x="{across(low):.2f}%" y="{_TOP}" width="{max(across(high) - across(low), 0.5):.2f}%" '
        f'height="{_HEIGHT}" style="fill:var(--track)"/>'
    )
    mark = (
        f'<line x1="{across(estimate):.2f}%" x2="{across(estimate):.2f}%" y1="{_TOP}" y2="{_TOP + _HEIGHT}" '
        f'style="stroke:var(--new);stroke-width:2"/>'
    )
    strokes = [
        f'<line x1="{across(a):.2f}%" y1="{down(s):.1f}" x2="{across(b):.2f}%" y2="{down(t):.1f}" '
        f'style="stroke:var(--ours);stroke-width:2.5"/>'
        for (a, s), (b, t) in itertools.pairwise(curve)
    ]
    ticks = [
        text(f"{across(k):.2f}%", _TOP + _HEIGHT + 20, str(k), muted("middle"))
        for k in _apart(sorted({first, low, estimate, high, last}, key=lambda k: (k != estimate, k)), across)
    ]
    said = ", ".join(f"{k}: {score:.2f}" for k, score in curve)
    title = f"Score of each number of classes; {estimate} fits best, between {low} and {high}"
    return svg(_TOP + _HEIGHT + _AXIS, title, said, [band, *strokes, mark, *ticks])


def _apart(wanted: Sequence[int], across: Callable[[float], float]) -> list[int]:
    """Return the numbers whose labels have room, those that come first before the others."""
    kept: list[int] = []
    for number in wanted:
        if all(abs(across(number) - across(other)) >= _ROOM for other in kept):
            kept.append(number)
    return kept
