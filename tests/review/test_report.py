import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image

from inlay.review.content import DiscoveredClass, Report, RunFacts, StageSection
from inlay.review.report import render
from inlay.review.results import FeatureBaseline, Results

HOSTILE = "</title><script>alert(1)</script>\"'&<img src=x onerror=alert(2)>"
VOID = {"meta", "img"}


class Page(HTMLParser):
    """Elements, attributes and visible words of a page; fails on elements closed in the wrong order."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.extend(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open[-1:] != ["style"]:
            self.words.append(data.strip())

    def values(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


@pytest.fixture
def images() -> torch.Tensor:
    return torch.arange(2 * 16, dtype=torch.uint8).reshape(2, 1, 4, 4)


@pytest.fixture
def report(results: Results, images: torch.Tensor) -> Report:
    base, novel = (StageSection(**stage) for stage in results["stages"])
    found = (
        DiscoveredClass("found-a", "seven", 1234, 0.8642, images),
        DiscoveredClass("found-b", None, 1, None, images[:0]),
    )
    facts = RunFacts(results["command"], results["seed"], results["versions"], results["seconds"])
    return Report("A run", "Some words.", (base, replace(novel, discovered=found)), facts)


def test_numbers_shown_are_the_numbers_given(report: Report) -> None:
    page = Page(render(report))
    rows = re.findall(r"<tr>(.*?)</tr>", render(report))
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    assert cells == [
        ["After stage", "Old", "New", "All", "New head", "Old head"],
        ["base", "98.8%", "–", "81.3%", "–", "97.5%"],
        ["stage1", "94.3%", "67.9%", "81.3%", "76.5%", "97.5%"],
    ]
    for words in (
        "Some words.",
        "43.2%", "54.3%", "1.2%", "70.1%", "34.6%", "99.1%", "98.2%",
        "2.5e-06", "1,234,567", "2,345,678", "1,235,081",
        "0.654", "-0.012", "train images", "base 94.3%, stage1 67.9%",
        "3 classes in 12.3 s: zero, one, two",
        "2 classes in 1 min 3 s: found-a, found-b",
        "matches “seven” · 1,234 images · 86.4% pure",
        "not matched to a true class · 1 image", "no images",
        "inlay demo --seed 3", "3", "1 min 15 s", "inlay 0.1.0, torch 2.11.0",
    ):  # fmt: skip
        assert words in page.words


def test_nothing_is_fetched_and_nothing_runs(report: Report) -> None:
    html = render(report)
    page = Page(html)
    assert "http" not in html
    assert "url(" not in html
    assert "@import" not in html
    assert not {"script", "link", "iframe", "object", "embed", "base"} & set(page.tags)
    assert not page.values("href")
    assert page.values("src")
    assert all(source.startswith("data:image/png;base64,") for source in page.values("src"))


def test_the_picture_shows_the_examples(report: Report, images: torch.Tensor) -> None:
    (source,) = Page(render(report)).values("src")
    shown = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
    pixels = np.asarray(shown)
    scale = shown.height // 4
    np.testing.assert_array_equal(pixels[::scale, : 4 * scale : scale, 0], images[0, 0].numpy())
    np.testing.assert_array_equal(pixels[::scale, -4 * scale :: scale, 0], images[1, 0].numpy())


def test_large_and_many_examples_are_reduced(report: Report) -> None:
    many = torch.zeros(500, 3, 200, 300, dtype=torch.uint8)
    novel = replace(report.stages[1], discovered=(DiscoveredClass("a", None, 500, None, many),))
    (source,) = Page(render(replace(report, stages=(novel,)))).values("src")
    shown = Image.open(io.BytesIO(base64.b64decode(source.split(",")[1])))
    assert max(shown.size) < 500


def test_hostile_names_stay_text(report: Report, images: torch.Tensor) -> None:
    plain = Page(render(report))
    hostile_stages = tuple(
        replace(
            stage,
            name=HOSTILE,
            classes=[HOSTILE] * len(stage.classes),
            metrics={**stage.metrics, "groups": {HOSTILE: 0.5, "base": 0.5}},
            discovered=tuple(replace(found, name=HOSTILE, matched_truth=HOSTILE) for found in stage.discovered),
        )
        for stage in report.stages
    )
    facts = RunFacts(HOSTILE, 0, {HOSTILE: HOSTILE}, 1.0)
    html = render(Report(HOSTILE, HOSTILE, hostile_stages, facts))
    page = Page(html)
    assert "<script" not in html
    assert "<img src=x" not in html
    assert page.tags.count("img") == plain.tags.count("img")
    assert not page.values("onerror")
    assert page.words.count(HOSTILE) >= 7
    assert f"2 examples of {HOSTILE}" in page.values("alt")


def test_charts_are_well_formed_and_show_what_was_measured(report: Report) -> None:
    charts = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", render(report))]
    told = [chart.findtext("desc") for chart in charts]
    assert told == [
        "base: Old 98.8%, New –, All 81.3%; stage1: Old 94.3%, New 67.9%, All 81.3%",
        "New head: new images, new classes only: inlay 76.5%, k-means on pixels 43.2%, k-means on base features 54.3%",
        "Old: old images, any class: inlay 94.3%, Forgetful fine-tuning 1.2%, Supervised ceiling 99.1%",
        "New: new images, any class: inlay 67.9%, Forgetful fine-tuning 70.1%, Supervised ceiling 98.2%",
        "All: every image, any class: inlay 81.3%, Forgetful fine-tuning 34.6%, Supervised ceiling 98.8%",
    ]


def test_skipped_baselines_are_not_spoken_of(report: Report) -> None:
    base, novel = report.stages
    some = replace(novel, baselines={"forgetful": None, "kmeans_pixels": {"new_head": 0.5}, "supervised": {}})
    html = render(replace(report, stages=(base, some)))
    assert "k-means on pixels" in html
    assert "Forgetful" not in html
    assert "Supervised" not in html
    none = render(replace(report, stages=(base, replace(novel, baselines=None))))
    assert "Compared with" not in none


@pytest.mark.parametrize(
    ("base", "told"),
    [
        ("own", "; of two such networks the better was taken: the one of this run."),
        ("plain", "; of two such networks the better was taken: a plain one, trained on the images as they are."),
        (None, "."),
    ],
)
def test_the_clustered_base_is_told(report: Report, base: str | None, told: str) -> None:
    scores = FeatureBaseline(new_head=0.5) if base is None else FeatureBaseline(new_head=0.5, base=base)
    novel = replace(report.stages[1], baselines={"kmeans_features": scores})
    words = Page(render(replace(report, stages=(novel,)))).words
    meaning = "plain clustering of what a base network sees, which never met the new classes"
    assert f"{meaning}{told}" in words


def test_base_stage_alone(report: Report) -> None:
    html = render(replace(report, stages=report.stages[:1], summary=""))
    page = Page(html)
    assert "svg" not in page.tags
    assert "img" not in page.tags
    assert "98.8%" in page.words
    assert "What was discovered" not in html
    assert "Merge" not in page.words


def test_page_has_dark_colours_for_every_variable_of_the_light_ones(report: Report) -> None:
    html = render(report)
    light, dark = html.split("@media (prefers-color-scheme: dark)", 1)
    defined = set(re.findall(r"(--[a-z]+):", light))
    assert set(re.findall(r"(--[a-z]+):", dark)) == defined
    assert set(re.findall(r"var\((--[a-z]+)\)", html)) <= defined


def test_a_report_needs_a_stage(report: Report) -> None:
    with pytest.raises(ValueError, match="at least one stage"):
        replace(report, stages=())
