"""Draw docs/images/NAME.svg from each benchmarks/results/pictures/NAME.json.

python -m benchmarks.pictures [--check]

A file is one object whose "picture" says what it shows, with a "title" and the data:

- "magnitude": how strongly base and branch respond in each unit of the hybrid. "gates" is a list of
  {"label": "AMM", "old": MAGNITUDES, "new": MAGNITUDES}, where MAGNITUDES is what
  `inlay.branches.magnitude.BranchMagnitudes.to_json` gives for old and for new test images; all have the same units.
- "tradeoff": accuracy on old against accuracy on new classes. "systems" is a list of
  {"label": "adm", "points": [[bias, old, new], ...], "area": 0.53}, the last two as
  `inlay.evaluation.tradeoff.Tradeoff.to_json` gives them.
- "confusion": what is taken for what. "systems" is a list of
  {"label": "adm", "classes": ["old", "new"], "matrix": [[0.9, 0.1], [0.2, 0.8]]}, rows true and columns predicted,
  counts or shares, as many as there are classes; "old", if there, is the number of classes before the dividing line.
- "curves": accuracy after each stage, the base stage first. "systems" is a list of
  {"label": "icarl", "accuracies": [0.8, 0.7]}.

Other keys, such as the command that measured the data, are left alone. The charts of `inlay.review` take their colours
from the page around them and their ticks from stages; these stand alone and have axes of numbers.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from inlay.errors import InlayError
from inlay.review.wording import percent

__all__ = ["confusion", "curves", "draw", "magnitude", "main", "outdated", "tradeoff"]

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "pictures"
IMAGES = ROOT / "docs" / "images"

STYLE = """
:root { --ink: #1c2230; --muted: #5b6577; --paper: #ffffff; --rule: #dfe3ea;
  --c0: #0b6e6e; --c1: #b8480b; --c2: #3457b2; --c3: #8a3ab0; --c4: #8a6d0c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf0; --muted: #a0a9b8; --paper: #12151b; --rule: #323a47;
  --c0: #3cc2b8; --c1: #f29a5f; --c2: #86a5f4; --c3: #d08cf0; --c4: #d9ad4c; } }
text { fill: var(--ink); font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }
.heading { font-size: 15px; font-weight: 600; } .label { font-weight: 600; }
.tick { fill: var(--muted); font-size: 11px; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.paper { fill: var(--paper); } .axes { fill: none; stroke: var(--rule); } .grid { stroke: var(--rule); }
.divider { stroke: var(--ink); stroke-width: 1.5; } polyline { fill: none; stroke-width: 2; stroke-linejoin: round; }
"""
_COLOURS = 5
_DASHES = ("none", "6 3", "2 3")
_PERCENTS = tuple((percents / 100, f"{percents}%") for percents in range(0, 101, 20))
_WIDTH, _TOP, _LETTER = 720.0, 80.0, 6.6
_NAMED, _NUMBERED, _LONGEST = 20, 12, 14
# What each number of a unit is called, and its colour.
_PARTS = {
    "base": ("base", "--c2"),
    "novel": ("branch, gate excluded", "--c1"),
    "gated": ("branch, gate included", "--c0"),
}
_KINDS = {"old": ("old images", "none"), "new": ("new images", "6 3")}


@dataclass(frozen=True)
class _Axes:
    """Where numbers are drawn: a rectangle in pixels, and the largest number on each axis; both start at 0."""

    left: float
    top: float
    width: float
    height: float
    most_x: float = 1.0
    most_y: float = 1.0

    def x(self, value: float) -> float:
        return self.left + self.width * value / self.most_x

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.most_y)

    def drawn(self, ticks_y: Sequence[tuple[float, str]]) -> str:
        """The rectangle, and ticks with grid lines on the vertical axis."""
        parts = [_tag("rect", x=self.left, y=self.top, width=self.width, height=self.height, class_="axes")]
        for value, words in ticks_y:
            y = self.y(value)
            parts.append(_tag("line", x1=self.left, x2=self.left + self.width, y1=y, y2=y, class_="grid"))
            parts.append(_text(self.left - 6, y + 4, words, "tick end"))
        return "".join(parts)

    def upright(self, words: str, distance: float = 46) -> str:
        """A label of the vertical axis."""
        return _turned(self.left - distance, self.top + self.height / 2, words, "middle")


def main() -> None:
    """Draw every picture, or with --check say whether all are up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a picture is not up to date")
    options = parser.parse_args()
    pictures = outdated(RESULTS, IMAGES)
    if options.check:
        sys.exit(bool(pictures))
    for path, picture in pictures.items():
        path.write_text(picture, encoding="utf-8")


def outdated(results: Path, images: Path) -> dict[Path, str]:
    """Return the pictures that are missing or differ from what the results give, by path.

    Raises:
        InlayError: If a file of results is not what the head of this module describes.
    """
    found = {}
    for source in sorted(results.glob("*.json")):
        path = images / f"{source.stem}.svg"
        try:
            picture = draw(json.loads(source.read_text(encoding="utf-8")))
        except InlayError as error:
            raise InlayError(f"{source.name}: {error}") from error
        if not path.is_file() or path.read_text(encoding="utf-8") != picture:
            found[path] = picture
    return found


def draw(record: Mapping[str, Any]) -> str:
    """Return the picture of one file of results as a standalone SVG.

    Raises:
        InlayError: If the record is not what the head of this module describes.
    """
    kinds = {"magnitude": magnitude, "tradeoff": tradeoff, "confusion": confusion, "curves": curves}
    try:
        picture: Callable[[Mapping[str, Any]], str] = kinds[record["picture"]]
        return picture(record)
    except KeyError as error:
        raise InlayError(f"{error} is missing or no kind of picture; write what benchmarks/pictures.py says.") from None


def magnitude(record: Mapping[str, Any]) -> str:
    """Draw one panel per gate: the responses in each unit, on old and on new images."""
    gates = _entries(record, "gates")
    names = [unit["name"] for unit in gates[0]["old"]["units"]]
    measured = [gate[images]["units"] for gate in gates for images in ("old", "new")]
    if any([unit["name"] for unit in units] != names for units in measured):
        raise InlayError("The gates have different units; measure them on hybrids of one form.")
    ticks = _round_ticks(max(unit[part] for units in measured for unit in units for part in _PARTS))
    lines = [(colour, "none", words) for words, colour in _PARTS.values()]
    parts = [_legend([*lines, *(("--muted", dash, words) for words, dash in _KINDS.values())])]
    top = _TOP
    for gate in gates:
        axes = _Axes(70, top + 20, _WIDTH - 90, 150, len(names), ticks[-1][0])
        inside = [_text(axes.left, top + 10, gate["label"], "label"), axes.drawn(ticks)]
        inside.append(axes.upright("mean of max |response|"))
        inside += [_response(axes, gate, images, part) for images in _KINDS for part in _PARTS]
        parts.append(_tag("g", "".join(inside), class_="panel", data_label=gate["label"]))
        top += 200
    for index, name in enumerate(names):
        parts.append(_turned(axes.x(index + 0.5) + 4, top - 22, name, "tick end"))
    height = top - 10 + _LETTER * max(map(len, names))
    parts.append(_text(axes.x(axes.most_x / 2), height + 10, "unit of the network", "middle"))
    return _svg(record["title"], height + 24, parts)


def _response(axes: _Axes, gate: Mapping[str, Any], images: str, part: str) -> str:
    places = [(axes.x(i + 0.5), axes.y(unit[part])) for i, unit in enumerate(gate[images]["units"])]
    (words, colour), (on, dash) = _PARTS[part], _KINDS[images]
    return _series(f"{words}, {on}", places, colour, dash, dots=places)


def tradeoff(record: Mapping[str, Any]) -> str:
    """Draw one curve per system, with a dot where no bias is added."""
    systems = _entries(record, "systems")
    _check_fractions(share for system in systems for _, *shares in system["points"] for share in shares)
    axes = _Axes(70, _TOP - 30, 440, 440)
    inside = _framed(axes, _PERCENTS, "accuracy on old classes", "accuracy on new classes")
    legend, names = [], [f"{system['label']}, area {system['area']:.3f}" for system in systems]
    for index, system in enumerate(systems):
        places = [(axes.x(old), axes.y(new)) for _, old, new in system["points"]]
        unbiased = [place for place, point in zip(places, system["points"], strict=True) if point[0] == 0]
        inside.append(_series(system["label"], places, *_stroke(index), dots=unbiased))
        legend.append(_sample_beside(axes, index, names[index]))
    left, y = axes.left + axes.width + 24, axes.top + 8 + 22 * len(systems)
    legend.append(_dot(left + 12, y, "--muted") + _text(left + 32, y + 4, "no bias added"))
    return _with_legend(record["title"], axes, inside, legend, names)


def curves(record: Mapping[str, Any]) -> str:
    """Draw one curve per system over the stages, with a dot after each."""
    systems = _entries(record, "systems")
    _check_fractions(value for system in systems for value in system["accuracies"])
    last = max(len(system["accuracies"]) for system in systems) - 1
    axes = _Axes(70, _TOP - 30, 440, 330, max(last, 1))
    ticks = [(value, words) for value, words in _round_ticks(last) if value <= axes.most_x]
    inside = _framed(axes, ticks, "stage; 0 is the base stage", "accuracy on all classes seen")
    legend, names = [], [system["label"] for system in systems]
    for index, system in enumerate(systems):
        places = [(axes.x(stage), axes.y(value)) for stage, value in enumerate(system["accuracies"])]
        inside.append(_series(system["label"], places, *_stroke(index), dots=places))
        legend.append(_sample_beside(axes, index, names[index]))
    return _with_legend(record["title"], axes, inside, legend, names)


def _check_fractions(values: Iterable[float]) -> None:
    if not all(0 <= value <= 1 for value in values):
        raise InlayError("An accuracy is not a fraction from 0 to 1; write 0.5 for 50 %.")


def _framed(axes: _Axes, ticks: Sequence[tuple[float, str]], across: str, upright: str) -> list[str]:
    """Axes of which the vertical one is of accuracies, with labels."""
    bottom = axes.top + axes.height
    parts = [axes.drawn(_PERCENTS), axes.upright(upright)]
    parts += [_text(axes.x(value), bottom + 18, words, "tick middle") for value, words in ticks]
    return [*parts, _text(axes.x(axes.most_x / 2), bottom + 40, across, "middle")]


def _stroke(index: int) -> tuple[str, str]:
    """Colour and dashes of a curve among several."""
    return f"--c{index % _COLOURS}", _DASHES[index // _COLOURS % len(_DASHES)]


def _sample_beside(axes: _Axes, index: int, words: str) -> str:
    return _sample(axes.left + axes.width + 24, axes.top + 8 + 22 * index, *_stroke(index), words)


def _with_legend(title: str, axes: _Axes, inside: Sequence[str], legend: Sequence[str], names: Sequence[str]) -> str:
    panel = _tag("g", "".join(inside), class_="panel")
    width = max(_WIDTH, axes.left + axes.width + 74 + _LETTER * max(map(len, names)))
    height = max(axes.top + axes.height + 60, axes.top + 28 + 22 * len(legend))
    return _svg(title, height, [panel, *legend], width)


def confusion(record: Mapping[str, Any]) -> str:
    """Draw one matrix per system, each row the shares of the images of a class."""
    systems = _entries(record, "systems")
    longest = max(_name_room(system["classes"]) for system in systems)
    side = 130.0 if all(len(system["classes"]) <= 2 for system in systems) else 236.0
    width, height = side + longest + 44, side + longest + 70
    columns = max(int(_WIDTH // width), 1)
    parts = [_legend([("--c0", None, "taken for what it is"), ("--c1", None, "taken for another")])]
    parts.append(_text(_WIDTH - 20, _TOP - 26, "share of the images of a row", "end"))
    for index, system in enumerate(systems):
        row, column = divmod(index, columns)
        axes = _Axes(column * width + longest + 34, _TOP + row * height + longest + 20, side, side)
        parts.append(_tag("g", _matrix(system, axes), class_="panel", data_label=system["label"]))
    return _svg(record["title"], _TOP + math.ceil(len(systems) / columns) * height, parts)


def _matrix(system: Mapping[str, Any], axes: _Axes) -> str:
    names, matrix, room = system["classes"], system["matrix"], _name_room(system["classes"])
    if [len(row) for row in matrix] != [len(names)] * len(names):
        raise InlayError(f"The matrix of {system['label']} needs a row and a column for each of its classes.")
    size, right, bottom = axes.width / len(names), axes.left + axes.width, axes.top + axes.height
    parts = [_text(axes.left, axes.top - room - 10, system["label"], "label"), axes.drawn([])]
    parts += [axes.upright("true", room + 14), _text(axes.left + axes.width / 2, bottom + 18, "predicted", "middle")]
    for i, row in enumerate(matrix):
        middle = (i + 0.5) * size
        shares = [value / (sum(row) or 1) for value in row]
        parts += [_cell(axes, size, i, j, share, len(names)) for j, share in enumerate(shares) if share]
        if room:
            name = _shortened(names[i])
            parts.append(_text(axes.left - 6, axes.top + middle + 4, name, "tick end"))
            parts.append(_turned(axes.left + middle + 4, axes.top - 6, name, "tick"))
    if "old" in system:
        x, y = axes.left + system["old"] * size, axes.top + system["old"] * size
        parts.append(_tag("line", x1=axes.left, x2=right, y1=y, y2=y, class_="divider"))
        parts.append(_tag("line", x1=x, x2=x, y1=axes.top, y2=bottom, class_="divider"))
    return "".join(parts)


def _cell(axes: _Axes, size: float, i: int, j: int, share: float, classes: int) -> str:
    x, y = axes.left + j * size, axes.top + i * size
    # The root shows small shares; 0.6 keeps the number readable.
    style = f"fill:var(--c{int(i != j)});fill-opacity:{0.6 * share**0.5:.3f}"
    square = _tag("rect", x=x, y=y, width=size, height=size, style=style)
    if classes > _NUMBERED:
        return square
    words = percent(share) if classes <= 2 else f"{100 * share:.0f}"
    return square + _text(x + size / 2, y + size / 2 + 4, words, "middle")


def _entries(record: Mapping[str, Any], key: str) -> list[Any]:
    entries: list[Any] = record[key]
    if not entries:
        raise InlayError(f"There is nothing to draw; list at least one entry under {key!r}.")
    return entries


def _name_room(names: Sequence[str]) -> float:
    """Return the pixels that the names of classes take; too many are not written."""
    if not names:
        raise InlayError("A confusion needs at least one class.")
    return _LETTER * max(len(_shortened(name)) for name in names) if len(names) <= _NAMED else 0.0


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"


def _round_ticks(largest: float) -> list[tuple[float, str]]:
    """Return round numbers from 0 to at least the largest, at most six, with their words."""
    if largest <= 0:
        return [(0.0, "0"), (1.0, "1")]
    power = 10.0 ** math.floor(math.log10(largest / 5))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * 5 >= largest * (1 - 1e-9))
    return [(step * i, f"{step * i:.4g}") for i in range(math.ceil(largest / step - 1e-9) + 1)]


def _series(
    label: str,
    places: Sequence[tuple[float, float]],
    colour: str,
    dash: str,
    dots: Sequence[tuple[float, float]],
) -> str:
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    line = _tag("polyline", points=points, style=f"stroke:var({colour});stroke-dasharray:{dash}")
    return _tag("g", line + "".join(_dot(x, y, colour) for x, y in dots), class_="series", data_label=label)


def _legend(entries: Sequence[tuple[str, str | None, str]]) -> str:
    """Samples side by side under the title: colour, dashes of a line (None for a patch) and words."""
    parts, left = [], 20.0
    for colour, dash, words in entries:
        parts.append(_sample(left, _TOP - 30, colour, dash, words))
        left += 44 + _LETTER * len(words)
    return _tag("g", "".join(parts), class_="legend")


def _sample(left: float, y: float, colour: str, dash: str | None, words: str) -> str:
    if dash is None:
        mark = _tag("rect", x=left + 10, y=y - 6, width=12, height=12, style=f"fill:var({colour});fill-opacity:0.6")
    else:
        style = f"stroke:var({colour});stroke-dasharray:{dash};stroke-width:2"
        mark = _tag("line", x1=left, x2=left + 24, y1=y, y2=y, style=style)
    return mark + _text(left + 30, y + 4, words)


def _dot(x: float, y: float, colour: str) -> str:
    return _tag("circle", cx=x, cy=y, r=3.0, style=f"fill:var({colour})")


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return _tag("text", escape(words), x=x, y=y, class_=kind)


def _turned(x: float, y: float, words: str, kind: str) -> str:
    return _tag("text", escape(words), class_=kind, transform=f"translate({x:.1f} {y:.1f}) rotate(-90)")


def _tag(name: str, inside: str = "", **attributes: float | str) -> str:
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else f"{value:.1f}"}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{inside}</{name}>"


def _svg(title: str, height: float, parts: Sequence[str], width: float = _WIDTH) -> str:
    body = [
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        _tag("rect", width=width, height=height, rx=8.0, class_="paper"),
        _text(20, 28, title, "heading"),
        *parts,
    ]
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n' + "\n".join(body) + "\n</svg>\n"


if __name__ == "__main__":
    main()
