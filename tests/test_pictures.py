import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks import pictures
from benchmarks.pictures import draw, outdated

from inlay.errors import InlayError

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<b>&\"'</b>"
Element = ElementTree.Element
Box = tuple[float, float, float, float]


def _magnitudes(*units: tuple[str, float, float, float]) -> dict[str, Any]:
    return {"units": [dict(zip(("name", "base", "novel", "gated"), unit, strict=True)) for unit in units]}


def _magnitude() -> dict[str, Any]:
    old = _magnitudes(("conv1", 8.0, 1.0, 0.5), ("layer1.conv", 6.0, 2.0, 1.0), ("head", 3.0, 0.0, 0.0))
    new = _magnitudes(("conv1", 7.0, 3.0, 1.5), ("layer1.conv", 5.0, 4.0, 2.0), ("head", 2.0, 1.0, 0.1))
    return {
        "picture": "magnitude",
        "title": "Responses",
        "gates": [{"label": label, "old": old, "new": new} for label in ("IMM", "AFF", "AMM")],
    }


def _tradeoff(systems: int = 9) -> dict[str, Any]:
    points = [[-1.0, 0.9, 0.0], [0.0, 0.8, 0.5], [2.0, 0.0, 0.7]]
    entries = [{"label": f"system {i}", "points": points, "area": 0.25 + i / 100} for i in range(systems)]
    return {"picture": "tradeoff", "title": "Old against new", "systems": entries, "command": "inlay bench"}


def _confusion(classes: int = 2, **options: Any) -> dict[str, Any]:
    names = ["old", "new"] if classes == 2 else [f"class {i}" for i in range(classes)]
    matrix = [[30 if i == j else 10 for j in range(classes)] for i in range(classes)]
    entries = [{"label": label, "classes": names, "matrix": matrix, **options} for label in ("adm", "inlay")]
    return {"picture": "confusion", "title": "What is taken for what", "systems": entries}


def _curves(systems: int = 14, stages: int = 7) -> dict[str, Any]:
    falling = [0.8 - 0.05 * stage for stage in range(stages + 1)]
    entries = [{"label": f"system {i}", "accuracies": falling} for i in range(systems)]
    return {"picture": "curves", "title": "After each stage", "systems": entries}


RECORDS = [_magnitude(), _tradeoff(), _confusion(), _confusion(10, old=5), _confusion(40, old=30), _curves()]
every_record = pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["picture"])


def _root(record: dict[str, Any]) -> Element:
    root = ElementTree.fromstring(draw(record))
    assert root.tag == f"{SVG}svg"
    return root


def _words(root: Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def _of_class(root: Element, kind: str) -> list[Element]:
    return [element for element in root.iter() if element.get("class") == kind]


def _box(rect: Element) -> Box:
    left, top, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
    return left, top, left + width, top + height


def _points(series: Element) -> list[tuple[float, float]]:
    (line,) = series.iter(f"{SVG}polyline")
    return [(float(x), float(y)) for x, y in (point.split(",") for point in line.attrib["points"].split())]


def _dots(series: Element) -> list[tuple[float, float]]:
    return [(float(dot.attrib["cx"]), float(dot.attrib["cy"])) for dot in series.iter(f"{SVG}circle")]


def _is_inside(place: tuple[float, float], box: Box) -> bool:
    # Coordinates are written with one decimal.
    return box[0] - 0.1 <= place[0] <= box[2] + 0.1 and box[1] - 0.1 <= place[1] <= box[3] + 0.1


@every_record
def test_everything_lies_inside_the_picture_and_its_axes(record: dict[str, Any]) -> None:
    root = _root(record)
    whole = (0.0, 0.0, float(root.attrib["width"]), float(root.attrib["height"]))
    for text in root.iter(f"{SVG}text"):
        if "x" in text.attrib:
            assert _is_inside((float(text.attrib["x"]), float(text.attrib["y"])), whole)
        else:
            x, y = text.attrib["transform"].removeprefix("translate(").partition(")")[0].split()
            assert _is_inside((float(x), float(y)), whole)
    panels = _of_class(root, "panel")
    assert panels
    for panel in panels:
        (axes,) = _of_class(panel, "axes")
        box = _box(axes)
        assert _is_inside(box[:2], whole) and _is_inside(box[2:], whole)
        for place in [place for series in _of_class(panel, "series") for place in _points(series) + _dots(series)]:
            assert _is_inside(place, box)
        for rect in panel.iter(f"{SVG}rect"):
            assert _is_inside(_box(rect)[:2], box) and _is_inside(_box(rect)[2:], box)


@every_record
def test_a_picture_has_colours_for_light_and_dark(record: dict[str, Any]) -> None:
    root = _root(record)
    light, dark = root.findtext(f"{SVG}style", "").split("@media (prefers-color-scheme: dark)")
    used = {part.partition(")")[0] for part in draw(record).split("var(")[1:]}
    assert {"--ink", "--paper"} < used
    assert all(f"{name}: #" in light and f"{name}: #" in dark for name in used)
    assert root.findtext(f"{SVG}title") == record["title"] in _words(root)


def test_each_gate_shows_every_response_on_old_and_new_images() -> None:
    record = _magnitude()
    root = _root(record)
    words = _words(root)
    assert {"IMM", "AFF", "AMM", "conv1", "layer1.conv", "head", "unit of the network"} < set(words)
    assert words.count("mean of max |response|") == 3
    parts = {"base": "base", "novel": "branch, gate excluded", "gated": "branch, gate included"}
    assert {*parts.values(), "old images", "new images"} < set(words)
    for panel, gate in zip(_of_class(root, "panel"), record["gates"], strict=True):
        series = {found.attrib["data-label"]: found for found in _of_class(panel, "series")}
        (axes,) = _of_class(panel, "axes")
        _, top, _, bottom = _box(axes)
        assert len(series) == 6
        for part, name in parts.items():
            for images in ("old", "new"):
                line = series[f"{name}, {images} images"]
                heights = [bottom - y for _, y in _points(line)]
                # The axis ends at 8, the largest value.
                values = [unit[part] / 8 * (bottom - top) for unit in gate[images]["units"]]
                assert heights == pytest.approx(values, abs=0.06)
                assert _dots(line) == _points(line)


@pytest.mark.parametrize(
    ("largest", "ticks"),
    [
        (8.0, ["0", "2", "4", "6", "8"]),
        (0.05, ["0", "0.01", "0.02", "0.03", "0.04", "0.05"]),
        (130.0, ["0", "50", "100", "150"]),
        (0.0, ["0", "1"]),
    ],
)
def test_ticks_are_round_and_reach_the_largest_response(largest: float, ticks: list[str]) -> None:
    units = _magnitudes(("conv", largest, 0.0, 0.0))
    root = _root({"picture": "magnitude", "title": "", "gates": [{"label": "AMM", "old": units, "new": units}]})
    assert [text.text for text in _of_class(root, "tick end")] == [*ticks, "conv"]


def test_each_system_has_a_curve_of_its_own_with_a_dot_at_no_bias() -> None:
    record = _tradeoff(15)
    root = _root(record)
    curves = _of_class(root, "series")
    assert [curve.attrib["data-label"] for curve in curves] == [system["label"] for system in record["systems"]]
    assert {"system 0, area 0.250", "system 14, area 0.390", "no bias added"} < set(_words(root))
    assert {"accuracy on old classes", "accuracy on new classes", "0%", "100%"} < set(_words(root))
    (axes,) = _of_class(root, "axes")
    left, top, right, bottom = _box(axes)
    for curve in curves:
        expected = [(left + old * (right - left), bottom - new * (bottom - top)) for old, new in _SHARES]
        assert _points(curve) == [pytest.approx(place, abs=0.06) for place in expected]
        assert _dots(curve) == _points(curve)[1:2]
    looks = [line.attrib["style"] for curve in curves for line in curve.iter(f"{SVG}polyline")]
    assert len(set(looks)) == 15


_SHARES = [(0.9, 0.0), (0.8, 0.5), (0.0, 0.7)]


def test_a_long_name_widens_the_picture() -> None:
    record = _tradeoff(1)
    short = float(_root(record).attrib["width"])
    record["systems"][0]["label"] = "a system whose name is very long indeed and goes on"
    assert float(_root(record).attrib["width"]) > short + 100


def _cells(panel: Element) -> list[Element]:
    return [rect for rect in panel.iter(f"{SVG}rect") if rect.get("class") != "axes"]


def test_each_system_has_a_matrix_of_shares() -> None:
    root = _root(_confusion())
    assert {"taken for what it is", "taken for another"} < set(_words(root))
    for panel, label in zip(_of_class(root, "panel"), ("adm", "inlay"), strict=True):
        words = _words(panel)
        assert panel.attrib["data-label"] == label == words[0]
        assert {"true", "predicted"} < set(words)
        assert words.count("old") == words.count("new") == 2
        assert words.count("75.0%") == words.count("25.0%") == 2
        styles = [cell.attrib["style"] for cell in _cells(panel)]
        assert ["--c1" in style for style in styles] == [False, True, True, False]


def test_cells_stand_in_the_row_of_the_truth_and_the_column_of_the_prediction() -> None:
    record = _confusion(3, old=2)
    record["systems"][0]["matrix"] = [[1, 0, 0], [0, 0, 0], [0, 2, 0]]
    panel = _of_class(_root(record), "panel")[0]
    (axes,) = _of_class(panel, "axes")
    left, top, right, _ = _box(axes)
    size = (right - left) / 3
    first, second = (_box(cell)[:2] for cell in _cells(panel))
    assert first == pytest.approx((left, top), abs=0.1)
    assert second == pytest.approx((left + size, top + 2 * size), abs=0.1)
    across, down = _of_class(panel, "divider")
    assert float(across.attrib["y1"]) == float(across.attrib["y2"]) == pytest.approx(top + 2 * size, abs=0.1)
    assert float(down.attrib["x1"]) == float(down.attrib["x2"]) == pytest.approx(left + 2 * size, abs=0.1)


def test_many_classes_are_drawn_without_names() -> None:
    few, many = (_of_class(_root(_confusion(classes)), "panel")[0] for classes in (10, 40))
    assert _words(few).count("class 3") == 2 and "class 3" not in _words(many)
    assert len(_cells(many)) == 1600


def test_text_is_escaped() -> None:
    magnitude, tradeoff, confusion = _magnitude(), _tradeoff(), _confusion()
    magnitude["gates"][0]["label"] = tradeoff["systems"][0]["label"] = HOSTILE
    confusion["systems"][0]["label"] = confusion["title"] = HOSTILE
    assert HOSTILE in _words(_root(magnitude)) and HOSTILE in _words(_root(confusion))
    assert _of_class(_root(tradeoff), "series")[0].attrib["data-label"] == HOSTILE


def _with(record: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**record, **changes}


_OTHER = {"label": "AMM", "old": _magnitudes(("other", 1.0, 1.0, 1.0)), "new": _magnitudes(("other", 1.0, 1.0, 1.0))}
_IN_PERCENT = {"label": "adm", "points": [[0.0, 90.0, 50.0]], "area": 0.5}
_NOT_SQUARE = {"label": "adm", "classes": ["old", "new"], "matrix": [[1, 0]]}


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (_with(_tradeoff(), picture="pie"), "'pie' is missing or no kind"),
        ({"picture": "tradeoff", "title": ""}, "'systems' is missing"),
        (_with(_tradeoff(), systems=[]), "at least one entry under 'systems'"),
        (_with(_tradeoff(), systems=[_IN_PERCENT]), "not a fraction"),
        (_with(_magnitude(), gates=[*_magnitude()["gates"], _OTHER]), "different units"),
        (_with(_confusion(), systems=[_NOT_SQUARE]), "row and a column for each"),
        (_with(_confusion(), systems=[{"label": "adm", "classes": [], "matrix": []}]), "at least one class"),
    ],
)
def test_records_of_another_form_are_refused(record: dict[str, Any], said: str) -> None:
    with pytest.raises(InlayError, match=said):
        draw(record)


def test_pictures_are_drawn_once_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, images = tmp_path / "results", tmp_path / "images"
    results.mkdir()
    images.mkdir()
    for name, record in (("gates", _magnitude()), ("curves", _tradeoff())):
        (results / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(pictures, "RESULTS", results)
    monkeypatch.setattr(pictures, "IMAGES", images)
    assert _exit_of_check(monkeypatch) == 1
    monkeypatch.setattr("sys.argv", ["pictures"])
    pictures.main()
    assert sorted(path.name for path in images.iterdir()) == ["curves.svg", "gates.svg"]
    assert (images / "gates.svg").read_text(encoding="utf-8") == draw(_magnitude())
    assert _exit_of_check(monkeypatch) == 0
    (results / "curves.json").write_text(json.dumps(_tradeoff(2)), encoding="utf-8")
    assert list(outdated(results, images)) == [images / "curves.svg"]
    (results / "curves.json").write_text("{}", encoding="utf-8")
    with pytest.raises(InlayError, match=r"curves\.json: 'picture' is missing"):
        outdated(results, images)


def _exit_of_check(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr("sys.argv", ["pictures", "--check"])
    with pytest.raises(SystemExit) as exit_:
        pictures.main()
    return int(exit_.value.code or 0)


def test_the_pictures_of_the_docs_are_up_to_date() -> None:
    assert list(outdated(pictures.RESULTS, pictures.IMAGES)) == []
