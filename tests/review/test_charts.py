from typing import Literal
from xml.etree import ElementTree

import pytest

from inlay.review.charts import Bar, BarGroup, Line, bars, lines

HOSTILE = "<b>&\"'</b>"


def parsed(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    assert root.tag == "svg"
    assert root.get("role") == "img"
    return root


def words(root: ElementTree.Element) -> list[str]:
    return [element.text or "" for element in root.iter("text")]


def filled(root: ElementTree.Element, variable: str) -> list[float]:
    """Widths, in percent, of the bars that have a colour."""
    return [
        float(rect.attrib["width"].rstrip("%"))
        for rect in root.iter("rect")
        if f"var({variable})" in rect.attrib["style"]
    ]


def levels(root: ElementTree.Element, role: str) -> list[tuple[float, float]]:
    """Places (percent across, pixels down) of the dots of a curve."""
    return [
        (float(dot.attrib["cx"].rstrip("%")), float(dot.attrib["cy"]))
        for dot in root.iter("circle")
        if f"var(--{role})" in dot.attrib["style"]
    ]


def test_bars_are_as_long_as_their_values() -> None:
    group = BarGroup("Old", (Bar("inlay", 0.875, "ours"), Bar("other", 0.25), Bar("top", 1.0, "ceiling")))
    root = parsed(bars([group], "A chart"))
    assert filled(root, "--ours") == [87.5]
    assert filled(root, "--baseline") == [25.0]
    assert filled(root, "--ceiling") == [100.0]
    assert words(root) == ["Old", "inlay", "87.5%", "other", "25.0%", "top", "100.0%"]
    assert root.findtext("title") == "A chart"
    assert root.findtext("desc") == "Old: inlay 87.5%, other 25.0%, top 100.0%"


def test_a_bar_without_a_value_shows_a_dash_and_no_length() -> None:
    root = parsed(bars([BarGroup("", (Bar("skipped", None),))], "A chart"))
    assert filled(root, "--baseline") == []
    assert words(root) == ["skipped", "–"]
    assert root.findtext("desc") == "skipped –"


def test_nothing_of_a_bar_chart_lies_below_its_height() -> None:
    group = BarGroup("Head", (Bar("a", 0.5), Bar("b", 0.5)))
    root = parsed(bars([group, group], "A chart"))
    bottoms = [float(rect.attrib["y"]) + float(rect.attrib["height"]) for rect in root.iter("rect")]
    assert max(bottoms) <= float(root.attrib["height"])
    tops = sorted({float(rect.attrib["y"]) for rect in root.iter("rect")})
    assert len(tops) == 4


def test_text_is_escaped() -> None:
    root = parsed(bars([BarGroup(HOSTILE, (Bar(HOSTILE, 0.5),))], HOSTILE))
    assert words(root)[:2] == [HOSTILE, HOSTILE]
    assert root.findtext("title") == HOSTILE
    root = parsed(lines([Line(HOSTILE, (0.5,), "all")], [HOSTILE], HOSTILE))
    assert root.findtext("title") == HOSTILE
    assert root.findtext("desc") == f"{HOSTILE}: {HOSTILE} 50.0%"


def test_curves_go_through_their_values() -> None:
    curves = [Line("Old", (1.0, 0.5, 0.0), "old"), Line("New", (None, 0.75, 0.25), "new")]
    root = parsed(lines(curves, ["base", "stage1", "stage2"], "Accuracy"))
    old, new = levels(root, "old"), levels(root, "new")
    (left, top), (middle, half), (right, bottom) = old
    assert top < bottom
    assert middle - left == pytest.approx(right - middle)
    assert half == pytest.approx((top + bottom) / 2)
    assert [x for x, _ in new] == [middle, right]
    assert new[0][1] == pytest.approx(bottom - 0.75 * (bottom - top), abs=0.06)
    strokes = [line.attrib["style"] for line in root.iter("line")]
    assert sum("--old" in style for style in strokes) == 2
    assert sum("--new" in style for style in strokes) == 1
    assert root.findtext("desc") == (
        "base: Old 100.0%, New –; stage1: Old 50.0%, New 75.0%; stage2: Old 0.0%, New 25.0%"
    )


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
def test_names_of_equal_curves_do_not_overlap(value: float) -> None:
    roles: tuple[Literal["old", "new", "all"], ...] = ("old", "new", "all")
    root = parsed(lines([Line(role, (value,), role) for role in roles], ["base"], "Accuracy"))
    named = [t for t in root.iter("text") if t.text in [f"{role} {100 * value:.1f}%" for role in roles]]
    heights = sorted(float(text.attrib["y"]) for text in named)
    assert len(heights) == 3
    assert min(heights[1] - heights[0], heights[2] - heights[1]) >= 13
    assert heights[0] > 0
    assert heights[2] < float(root.attrib["height"])


def test_long_names_of_stages_are_cut_but_described_in_full() -> None:
    name = "a-very-long-name-of-a-stage"
    root = parsed(lines([Line("All", (0.5,) * 8, "all")], [name] * 8, "Accuracy"))
    assert name not in words(root)
    assert name in (root.findtext("desc") or "")


@pytest.mark.parametrize(("values", "ticks"), [((0.5,), ["a", "b"]), ((), [])])
def test_a_curve_needs_a_value_for_each_tick(values: tuple[float, ...], ticks: list[str]) -> None:
    with pytest.raises(ValueError, match="one value for each"):
        lines([Line("All", values, "all")], ticks, "Accuracy")
