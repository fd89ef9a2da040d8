"""The parts of the report page, each as a piece of HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

from torch import Tensor

from inlay.review.charts import Bar, BarGroup, Line, bars, lines
from inlay.review.content import DiscoveredClass, Report, RunFacts, StageSection
from inlay.review.headline import Tile, sentences, tiles
from inlay.review.results import Merge
from inlay.review.sheets import data_uri, sheet, thumbnails
from inlay.review.wording import BASELINE_NAMES, NOTHING, counted, duration, joined, percent

__all__ = [
    "accuracy_section",
    "contact_sheet",
    "definitions",
    "facts_section",
    "headline_section",
    "merge_facts",
    "stage_section",
    "tile_row",
]

_PICTURES, _PICTURE_COLUMNS, _PICTURE_SIDE = 18, 6, 64
_CLASS_NAMES = 40

_GLOSSARY = (
    ("Old", "test images of classes from earlier stages (after the base stage: its own), any class allowed"),
    ("New", "test images of the classes that this stage discovered, any class allowed"),
    ("All", "every test image of the classes known so far, any class allowed"),
    ("New head", "the New images, when only the classes of this stage are allowed"),
    ("Old head", "the Old images, when only the classes of earlier stages are allowed"),
)
_ABOUT_GROUPS = (
    "Groups of images that the network formed without labels. Where the true classes are known, the best match "
    "is shown with its purity: the share of the group that belongs to it."
)
_Compared = Literal["new_head", "old", "new", "all"]
_COMPARED: dict[_Compared, str] = {
    "new_head": "New head: new images, new classes only",
    "old": "Old: old images, any class",
    "new": "New: new images, any class",
    "all": "All: every image, any class",
}
_BASELINE_MEANINGS = (
    ("kmeans_pixels", "plain clustering of the raw images; no network"),
    ("kmeans_features", "plain clustering of what a base network sees, which never met the new classes"),
    ("forgetful", "training on the new images with nothing done to keep the old classes"),
    ("supervised", "training with the true labels of all classes: what labels would have bought"),
)
_CLUSTERED_BASES = {
    "own": "the one of this run",
    "plain": "a plain one, trained on the images as they are",
}


def headline_section(report: Report) -> str:
    """Title, what was learned, and the large numbers."""
    lead = f'<p class="lead">{escape(" ".join(sentences(report)))}</p>'
    summary = f"<p>{escape(report.summary)}</p>" if report.summary else ""
    return f"<header><h1>{escape(report.title)}</h1>{lead}{summary}{tile_row(tiles(report))}</header>"


def tile_row(shown: Iterable[Tile]) -> str:
    """Show large numbers side by side."""
    cells = "".join(
        f'<div class="tile"><span>{escape(tile.label)}</span><strong>{escape(tile.value)}</strong>'
        f"<small>{escape(tile.note)}</small></div>"
        for tile in shown
    )
    return f'<div class="tiles">{cells}</div>'


def accuracy_section(stages: Sequence[StageSection]) -> str:
    """Accuracy after each stage as a table and a chart, and what the words mean."""
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("After stage", *(w for w, _ in _GLOSSARY)))
    rows = "".join(_accuracy_row(stage) for stage in stages)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    scrolling = f'<div class="wide" tabindex="0">{table}</div>'
    meanings = definitions((word, f"{meaning}.") for word, meaning in _GLOSSARY)
    glossary = f'<div class="glossary"><h3>What the words mean</h3>{meanings}</div>'
    explained = "<p>Share of test images for which the network answers with the right class, after each stage.</p>"
    below = f'<div class="beside">{_accuracy_chart(stages)}{glossary}</div>'
    return f"<section><h2>Accuracy</h2>{explained}{scrolling}{below}</section>"


def stage_section(stage: StageSection) -> str:
    """One stage: its classes, what was discovered, the comparison with other ways, and the merge."""
    how = "taught with labels" if stage.kind == "base" else "discovered without labels"
    heading = (
        f'<h2>{escape(stage.name)} <span class="badge {stage.kind}">{how}</span></h2>'
        f'<p class="muted">{counted(len(stage.classes), "class", "classes")} in '
        f"{duration(stage.seconds)}: {escape(joined(stage.classes, _CLASS_NAMES))}</p>"
    )
    parts = [heading]
    if stage.discovered:
        cards = "".join(_discovered_card(found) for found in stage.discovered)
        parts.append(f'<h3>What was discovered</h3><p>{_ABOUT_GROUPS}</p><div class="cards">{cards}</div>')
    parts += [_comparison(stage), _more_scores(stage)]
    if stage.merge is not None:
        parts.append(merge_facts(stage.merge))
    return f"<section>{''.join(parts)}</section>"


def facts_section(facts: RunFacts) -> str:
    """What is needed to repeat the run."""
    versions = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    listed = definitions(
        (
            ("Command", facts.command),
            ("Seed", str(facts.seed)),
            ("Time", duration(facts.seconds)),
            ("Versions", versions or NOTHING),
        )
    )
    return f'<footer><h2>How to repeat this run</h2><div class="facts">{listed}</div></footer>'


def _accuracy_row(stage: StageSection) -> str:
    metrics = stage.metrics
    values = (metrics["old"], metrics["new"], metrics["all"], metrics["new_head"], metrics["old_head"])
    cells = "".join(f"<td>{percent(value)}</td>" for value in values)
    return f'<tr><th scope="row">{escape(stage.name)}</th>{cells}</tr>'


def _accuracy_chart(stages: Sequence[StageSection]) -> str:
    if len(stages) < 2:
        return ""
    curves = (
        Line("Old", tuple(stage.metrics["old"] for stage in stages), "old"),
        Line("New", tuple(stage.metrics["new"] for stage in stages), "new"),
        Line("All", tuple(stage.metrics["all"] for stage in stages), "all"),
    )
    chart = lines(curves, [stage.name for stage in stages], "Accuracy after each stage")
    return f'<div class="chart">{chart}</div>'


def _comparison(stage: StageSection) -> str:
    """The charts that hold at least one other way next to ours; nothing where all were skipped."""
    charts = [_comparison_chart(stage, key, label) for key, label in _COMPARED.items()]
    if not any(charts):
        return ""
    notes = definitions(
        (BASELINE_NAMES[name], f"{meaning}{_choice_of_base(stage) if name == 'kmeans_features' else ''}.")
        for name, meaning in _BASELINE_MEANINGS
        if _is_charted(stage, name)
    )
    return (
        f'<h3>Compared with other ways</h3><div class="charts">{"".join(charts)}</div>'
        f'<div class="glossary">{notes}</div>'
    )


def _choice_of_base(stage: StageSection) -> str:
    """Which of two base networks was clustered; nothing where the results do not tell."""
    clustered = (stage.baselines or {}).get("kmeans_features") or {}
    base = clustered.get("base")
    return f"; of two such networks the better was taken: {_CLUSTERED_BASES[base]}" if base in _CLUSTERED_BASES else ""


def _comparison_chart(stage: StageSection, key: _Compared, label: str) -> str:
    others = [
        Bar(BASELINE_NAMES[name], value, "ceiling" if name == "supervised" else "baseline")
        for name, scores in _baseline_scores(stage).items()
        if (value := scores.get(key)) is not None
    ]
    if not others:
        return ""
    group = BarGroup(label, (Bar("inlay", stage.metrics[key], "ours"), *others))
    return f'<div class="chart">{bars([group], f"{stage.name} compared with other ways")}</div>'


def _baseline_scores(stage: StageSection) -> dict[str, dict[str, float | None]]:
    """Scores by baseline and key, in the order in which they are explained."""
    given = stage.baselines or {}
    found: dict[str, dict[str, float | None]] = {}
    for name, _ in _BASELINE_MEANINGS:
        scores = given.get(name)
        if isinstance(scores, dict):
            found[name] = scores
    return found


def _is_charted(stage: StageSection, name: str) -> bool:
    scores = _baseline_scores(stage).get(name, {})
    return any(scores.get(key) is not None for key in _COMPARED)


def _more_scores(stage: StageSection) -> str:
    metrics = stage.metrics
    facts: list[tuple[str, str]] = []
    if len(metrics["groups"]) > 1:
        groups = ", ".join(f"{name} {percent(value)}" for name, value in metrics["groups"].items())
        facts.append(("Accuracy by stage of origin", groups))
    if metrics["nmi"] is not None:
        facts.append(("Normalised mutual information", f"{metrics['nmi']:.3f}"))
    if metrics["ari"] is not None:
        facts.append(("Adjusted Rand index", f"{metrics['ari']:.3f}"))
    if metrics["matched_on"] is not None:
        facts.append(("Clusters matched to true classes on", f"{metrics['matched_on']} images"))
    return f'<h3>More scores</h3><div class="facts">{definitions(facts)}</div>' if facts else ""


def merge_facts(merge: Merge) -> str:
    """Say what merging did."""
    facts = (
        ("Largest change of an output", f"{merge['max_abs_diff']:.1e}"),
        ("Parameters before the stage", f"{merge['parameters_before']:,}"),
        ("while learning", f"{merge['parameters_hybrid']:,}"),
        ("after merging", f"{merge['parameters_after']:,}"),
    )
    return (
        "<h3>Merge</h3><p>The branches that learned the new classes were folded back into the network.</p>"
        f'<div class="facts">{definitions(facts)}</div>'
    )


def _discovered_card(found: DiscoveredClass) -> str:
    matched = "not matched to a true class" if found.matched_truth is None else f"matches “{found.matched_truth}”"
    purity = "" if found.purity is None else f" · {percent(found.purity)} pure"
    words = f"{matched} · {counted(found.size, 'image', 'images')}{purity}"
    shown = found.images[:_PICTURES]
    picture = contact_sheet(shown, f"{counted(len(shown), 'example', 'examples')} of {found.name}")
    return f'<article class="card"><h4>{escape(found.name)}</h4><p>{escape(words)}</p>{picture}</article>'


def contact_sheet(images: Tensor, label: str, columns: int = _PICTURE_COLUMNS) -> str:
    """Show images, uint8 [n, C, H, W], side by side in one picture; n may be 0."""
    if not len(images):
        return '<p class="muted">no images</p>'
    small = thumbnails(images, _PICTURE_SIDE)
    scale = max(1, _PICTURE_SIDE // max(small.shape[2:]))
    # A row that is not full is narrower, so that its pictures are no larger than those of other sheets.
    narrower = f' style="width:{100 * len(small) / columns:.4g}%"' if len(small) < columns else ""
    return f'<img alt="{escape(label)}"{narrower} src="{data_uri(sheet(small, columns, scale))}">'


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """List terms with what they mean or amount to."""
    items = "".join(f"<div><dt>{escape(term)}</dt><dd>{escape(text)}</dd></div>" for term, text in pairs)
    return f"<dl>{items}</dl>"
