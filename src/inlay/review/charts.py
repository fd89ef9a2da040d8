"""Charts as inline SVG that fit any width: positions across are percentages, so text keeps its size."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from inlay.review.wording import percent

__all__ = ["Bar", "BarGroup", "Line", "bars", "lines", "muted", "svg", "text"]

_HEADING, _ROW, _BAR, _GROUP_GAP = 26, 36, 9, 14
_TOP, _HEIGHT, _AXIS = 12, 190, 28
_LEFT, _RIGHT = 13.0, 72.0
_LABEL_DISTANCE = 16.0
_DASHES = {"old": "7 4", "new": "2 4", "all": "none"}


@dataclass(frozen=True)
class Bar:
    """One bar: what it stands for, its fraction (None where not measured) and the part it plays."""

    label: str
    value: float | None
    role: Literal["ours", "baseline", "ceiling"] = "baseline"


@dataclass(frozen=True)
class BarGroup:
    """Bars under one heading; an empty heading takes no room."""

    label: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Line:
    """One curve: its label, a fraction (or None) for each tick, and the colour it has."""

    label: str
    values: tuple[float | None, ...]
    role: Literal["old", "new", "all"]


def bars(groups: Sequence[BarGroup], title: str) -> str:
    """Grouped horizontal bars from 0 to 100 %, each with its label and value above it.

    The page gives the colours as CSS variables: --ink, --track, --ours, --baseline and --ceiling.

    Args:
        groups: bars from top to bottom; values are fractions.
        title: what the chart shows, for those who cannot see it.

    Returns:
        One SVG element as wide as its container.
    """
    parts: list[str] = []
    top = 0
    for group in groups:
        if group.label:
            parts.append(text("0", top + 14, group.label, "font-weight:600"))
            top += _HEADING
        for bar in group.bars:
            parts.append(_bar(bar, top))
            top += _ROW
        top += _GROUP_GAP
    said = "; ".join(
        f"{group.label}: {_listed((bar.label, bar.value) for bar in group.bars)}".removeprefix(": ") for group in groups
    )
    return svg(max(top - _GROUP_GAP, 1), title, said, parts)


def lines(curves: Sequence[Line], ticks: Sequence[str], title: str) -> str:
    """Curves of fractions over the stages, named at their right end.

    The page gives the colours as CSS variables: --ink, --muted, --rule, --old, --new and --all.

    Args:
        curves: curves with one value per tick; None leaves a gap.
        ticks: names of the stages from left to right.
        title: what the chart shows, for those who cannot see it.

    Returns:
        One SVG element as wide as its container.

    Raises:
        ValueError: if there is no tick, or a curve has another number of values than there are ticks.
    """
    if not ticks or any(len(curve.values) != len(ticks) for curve in curves):
        raise ValueError(f"every curve needs one value for each of the {len(ticks)} ticks, at least one")
    across = _positions(len(ticks))
    parts = [_gridline(fraction) for fraction in (0.0, 0.25, 0.5, 0.75, 1.0)]
    room = min(12, int(40 / max(len(ticks) - 1, 1)))
    for x, tick in zip(across, ticks, strict=True):
        parts.append(text(f"{x:.2f}%", _TOP + _HEIGHT + 22, _shortened(tick, room), muted("middle")))
    for curve in curves:
        parts.extend(_curve(curve, across))
    parts.extend(_end_labels(curves))
    said = "; ".join(
        f"{tick}: {_listed((curve.label, curve.values[i]) for curve in curves)}" for i, tick in enumerate(ticks)
    )
    return svg(_TOP + _HEIGHT + _AXIS, title, said, parts)


def _bar(bar: Bar, top: int) -> str:
    weight = "font-weight:600" if bar.role == "ours" else ""
    label = text("0", top + 13, bar.label, weight)
    value = text("100%", top + 13, percent(bar.value), f"text-anchor:end;{weight}")
    track = _rectangle(top, 1.0, "--track")
    return label + value + track + ("" if bar.value is None else _rectangle(top, bar.value, f"--{bar.role}"))


def _rectangle(top: int, fraction: float, colour: str) -> str:
    return (
        f'<rect x="0" y="{top + 19}" width="{100 * fraction:.2f}%" height="{_BAR}" rx="3" style="fill:var({colour})"/>'
    )


def _positions(count: int) -> list[float]:
    if count == 1:
        return [(_LEFT + _RIGHT) / 2]
    return [_LEFT + (_RIGHT - _LEFT) * i / (count - 1) for i in range(count)]


def _level(fraction: float) -> float:
    return _TOP + _HEIGHT * (1.0 - fraction)


def _gridline(fraction: float) -> str:
    y = _level(fraction)
    line = f'<line x1="{_LEFT}%" x2="{_RIGHT}%" y1="{y:.1f}" y2="{y:.1f}" style="stroke:var(--rule);stroke-width:1"/>'
    return line + text(f"{_LEFT - 1.5}%", y + 4, f"{fraction:.0%}", muted("end"))


def _curve(curve: Line, across: Sequence[float]) -> list[str]:
    points = [(x, _level(v)) if v is not None else None for x, v in zip(across, curve.values, strict=True)]
    stroke = f"stroke:var(--{curve.role});stroke-width:2.5;stroke-dasharray:{_DASHES[curve.role]}"
    parts = [
        f'<line x1="{a[0]:.2f}%" y1="{a[1]:.1f}" x2="{b[0]:.2f}%" y2="{b[1]:.1f}" style="{stroke}"/>'
        for a, b in itertools.pairwise(points)
        if a is not None and b is not None
    ]
    dots = [
        f'<circle cx="{p[0]:.2f}%" cy="{p[1]:.1f}" r="4" style="fill:var(--{curve.role})"/>'
        for p in points
        if p is not None
    ]
    return parts + dots


def _end_labels(curves: Sequence[Line]) -> list[str]:
    ends = [(curve, curve.values[-1]) for curve in curves]
    named = [(curve, value) for curve, value in ends if value is not None]
    places = _spread([_level(value) for _, value in named], _LABEL_DISTANCE, _TOP + _HEIGHT)
    return [
        text(
            f"{_RIGHT + 2.5}%",
            y + 4,
            f"{curve.label} {percent(value)}",
            f"fill:var(--{curve.role});font-weight:600",
        )
        for (curve, value), y in zip(named, places, strict=True)
    ]


def _spread(levels: Sequence[float], distance: float, lowest: float) -> list[float]:
    """Move heights apart until neighbours keep the distance, none below `lowest` (y grows downwards)."""
    order = sorted(range(len(levels)), key=lambda i: levels[i])
    placed = list(levels)
    for above, below in itertools.pairwise(order):
        placed[below] = max(placed[below], placed[above] + distance)
    limit = lowest
    for index in reversed(order):
        placed[index] = min(placed[index], limit)
        limit = placed[index] - distance
    return placed


def _listed(values: Iterable[tuple[str, float | None]]) -> str:
    return ", ".join(f"{label} {percent(value)}" for label, value in values)


def _shortened(words: str, room: int) -> str:
    return words if len(words) <= room else words[: max(room - 1, 1)] + "…"


def muted(anchor: str) -> str:
    """Return the style of a small note that is anchored at its "start", "middle" or "end"."""
    return f"fill:var(--muted);font-size:12px;text-anchor:{anchor}"


def text(x: str, y: float, words: str, style: str = "") -> str:
    """Return words of an SVG at a place; `x` may be a percentage."""
    return f'<text x="{x}" y="{y:.1f}" style="fill:var(--ink);font-size:13px;{style}">{escape(words)}</text>'


def svg(height: int, title: str, description: str, parts: Sequence[str]) -> str:
    """Return an SVG as wide as its container, with a title and a description for those who cannot see it."""
    return (
        f'<svg role="img" width="100%" height="{height}">'
        f"<title>{escape(title)}</title><desc>{escape(description)}</desc>{''.join(parts)}</svg>"
    )
