import itertools
from xml.etree import ElementTree

import pytest

from inlay.review.plots import class_colour, count_curve, plane_map


def test_every_image_is_a_point_of_the_colour_of_its_class() -> None:
    drawn = ElementTree.fromstring(
        plane_map([[0.5, 1.0], [-1.0, -1.0], [0.25, 0.0], [0.0, 0.5]], [4, 7, 4, None], {4: "cats & dogs", 7: "<b>"})
    )
    paths = {path.findtext("title"): path for path in drawn.iter("path")}
    assert {name: path.get("d") for name, path in paths.items()} == {
        "no class": "M0.000 -0.500h0",
        "cats & dogs": "M0.500 -1.000h0M0.250 -0.000h0",
        "<b>": "M-1.000 1.000h0",
    }
    assert paths["cats & dogs"].get("style") == f"stroke:{class_colour(4)}"
    left, top, width, height = map(float, str(drawn.get("viewBox")).split())
    assert left < -1 and left + width > 1 and top < -1 and top + height > 1


def test_classes_have_colours_of_their_own() -> None:
    assert len({class_colour(id) for id in range(200)}) == 200


def test_a_map_of_one_image_has_a_height() -> None:
    drawn = ElementTree.fromstring(plane_map([[0.0, 0.0]], [0], {}))
    assert float(str(drawn.get("viewBox")).split()[3]) >= 0.5


def test_the_curve_has_its_interval_and_its_estimate() -> None:
    curve = count_curve([(2, -1.0), (4, 0.5), (6, -0.5)], estimate=4, low=3, high=5)
    parsed = ElementTree.fromstring(curve)
    # 2 is at 2 % and 6 at 98 %.
    (band,) = parsed.findall("rect")
    assert (band.get("x"), band.get("width")) == ("26.00%", "48.00%")
    *strokes, mark = parsed.findall("line")
    assert (mark.get("x1"), mark.get("x2")) == ("50.00%", "50.00%")
    assert [(line.get("x1"), line.get("x2")) for line in strokes] == [("2.00%", "50.00%"), ("50.00%", "98.00%")]
    best, worst = float(str(strokes[0].get("y2"))), float(str(strokes[0].get("y1")))
    assert best < float(str(strokes[1].get("y2"))) < worst
    assert {text.text for text in parsed.findall("text")} == {"2", "3", "4", "5", "6"}
    assert parsed.findtext("desc") == "2: -1.00, 4: 0.50, 6: -0.50"


@pytest.mark.parametrize(("low", "high"), [(1, 90), (30, 31)])
def test_an_interval_beyond_the_curve_is_drawn_whole_and_labels_do_not_meet(low: int, high: int) -> None:
    parsed = ElementTree.fromstring(count_curve([(2, 0.0), (60, 0.0)], estimate=30, low=low, high=high))
    places = sorted(float(str(text.get("x")).rstrip("%")) for text in parsed.findall("text"))
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(places))
    assert "30" in {text.text for text in parsed.findall("text")}
    (band,) = parsed.findall("rect")
    assert 2 <= float(str(band.get("x")).rstrip("%")) <= 98
