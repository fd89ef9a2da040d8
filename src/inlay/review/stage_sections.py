"""The parts of the report of one stage, each as a piece of HTML."""

from collections.abc import Mapping
from html import escape
from typing import Any, cast

from inlay.review.cards import ClassCard, class_cards, classes_of_points, plane_of
from inlay.review.headline import Tile
from inlay.review.log import decision_log
from inlay.review.plots import class_colour, count_curve, plane_map
from inlay.review.results import Merge
from inlay.review.sections import contact_sheet, definitions, merge_facts, tile_row
from inlay.review.stage import DecidedStage
from inlay.review.wording import counted, duration, percent

__all__ = [
    "classes_section",
    "count_section",
    "decisions_section",
    "forgetting_section",
    "map_section",
    "pile_section",
    "stage_facts",
    "stage_headline",
]

_COLUMNS = 4


def stage_headline(stage: DecidedStage, title: str) -> str:
    """Title, what was found, and the large numbers."""
    found, record = _found(stage), stage.before.record
    new = [entry for entry in stage.after.registry.of_stage(stage.stage) if entry.is_active]
    old = [entry for entry in stage.after.registry.before(stage.stage) if entry.is_active]
    missing = len(stage.images) - len(stage.images.found)
    lead = (
        f"{counted(len(new), 'new class', 'new classes')} in {counted(record.images, 'image', 'images')}"
        f"{f', of which {missing:,} are missing or have changed since' if missing else ''}; "
        f"{counted(len(old), 'class', 'classes')} known before."
    )
    tiles = [Tile("New classes", f"{len(new):,}", _interval(found))]
    if "pile" in found:
        tiles.append(Tile("New images", f"{found['new']:,}", f"of {found['pile']:,} in the pile"))
    if "forgetting" in found:
        tiles.append(
            Tile(
                "Old classes",
                f"{round(-100 * found['forgetting']['drop'], 1) + 0:+.1f}",
                f"points of accuracy, {'measured' if _measured(stage) else 'estimated'}",
            )
        )
    return f'<header><h1>{escape(title)}</h1><p class="lead">{lead}</p>{tile_row(tiles)}</header>'


def classes_section(stage: DecidedStage) -> str:
    """Each class with typical and doubtful images, its size and its neighbours."""
    cards = "".join(_card(stage, card) for card in class_cards(stage))
    shown = f'<div class="cards">{cards}</div>' if cards else "<p>No discovered class is left.</p>"
    about = (
        "Typical images are nearest to the mean of their class. Borderline ones are nearly another class: look at them "
        "to see where a class ends."
    )
    return f"<section><h2>What was found</h2><p>{about}</p>{shown}</section>"


def map_section(stage: DecidedStage) -> str:
    """The images of the stage in the plane."""
    names = {entry.id: entry.name for entry in stage.after.registry}
    drawn = plane_map(plane_of(stage).tolist(), classes_of_points(stage), names)
    about = (
        "The features of the images along their two directions of largest variance, coloured as the classes above. "
        "Groups that overlap here may be apart in other directions."
    )
    return f"<section><h2>Map</h2><p>{about}</p>{drawn}</section>"


def count_section(stage: DecidedStage) -> str:
    """How many classes there seem to be, and the score of each number; nothing where the number was given."""
    found = _found(stage)
    if "classes" not in found:
        return ""
    count = found["classes"]
    words = f"About {count['estimate']}, between {count['low']} and {count['high']}."
    if count.get("loose"):
        words += " The images do not tell the number well."
    curve = [(int(k), float(score)) for k, score in found.get("curve", [])]
    chart = ""
    if len(curve) > 1:
        words += " The curve says how well each number of groups fits the images; the band is the interval."
        chart = f'<div class="chart">{count_curve(curve, count["estimate"], count["low"], count["high"])}</div>'
    return f"<section><h2>How many new classes</h2><p>{words}</p>{chart}</section>"


def pile_section(stage: DecidedStage) -> str:
    """How the pile was sorted; nothing where all images were said to be new."""
    found = _found(stage)
    if "pile" not in found:
        return ""
    share = found["new_share"]
    facts = (
        ("New, and learned", f"{found['new']:,}"),
        ("Of known classes", f"{found['known']:,}"),
        ("Neither", f"{found['neither']:,}"),
        (
            "Share of new images",
            f"{percent(share['share'])}, between {percent(share['low'])} and {percent(share['high'])}",
        ),
    )
    about = (
        f"Of {found['pile']:,} images only the new ones were learned. About {percent(found['error'])} of known images "
        f"are taken for something else, on average; what is neither known nor like other new images is left out."
    )
    return f'<section><h2>The pile</h2><p>{about}</p><div class="facts">{definitions(facts)}</div></section>'


def forgetting_section(stage: DecidedStage) -> str:
    """What the old classes lost, as estimated without their images; nothing where it was not."""
    if "forgetting" not in _found(stage):
        return ""
    told = _found(stage)["forgetting"]
    points = 100 * told["drop"]
    moves = "falls" if points >= 0 else "rises"
    held_out = stage.before.reference
    if held_out is None:
        source = (
            "This is estimated from what is stored of them, without images, and corrected by what hiding classes "
            "taught, where classes were hidden"
        )
    elif not _measured(stage):
        source = (
            f"This is estimated on the features of {counted(len(held_out), 'image', 'images')} of base classes that "
            "were kept out of training, moved as those of the new images have moved, and corrected by what hiding "
            "classes taught, where classes were hidden; later classes have none"
        )
    else:
        source = (
            f"This was measured on the features of {counted(len(held_out), 'image', 'images')} of base classes that "
            "were kept out of training; later classes have none"
        )
    words = (
        f"Accuracy on the old classes {moves} by about {abs(points):.1f} points. {source}; its standard error is "
        f"{100 * told['standard_error']:.1f} points."
    )
    return f"<section><h2>Forgetting</h2><p>{words}</p></section>"


def _measured(stage: DecidedStage) -> bool:
    """Whether forgetting was measured on images that were kept out of training, whose features have stayed."""
    return stage.before.reference is not None and stage.before.reference.exact


def decisions_section(stage: DecidedStage) -> str:
    """What people decided since the stage ended; nothing where they did not."""
    log = decision_log(stage.before.registry, stage.after.registry)
    items = "".join(f"<li>{escape(text)}</li>" for text in log)
    return f"<section><h2>Decisions</h2><ol>{items}</ol></section>" if log else ""


def stage_facts(stage: DecidedStage) -> str:
    """What is needed to know the stage again."""
    record, before = stage.before.record, stage.before
    facts = (
        ("Method", before.settings.method),
        ("Seed", str(before.seed)),
        ("Time", duration(record.seconds)),
        ("Images from", record.source or "memory"),
    )
    merged = "" if record.merge is None else merge_facts(cast(Merge, record.merge))
    return f'<footer><h2>About the stage</h2><div class="facts">{definitions(facts)}</div>{merged}</footer>'


def _card(stage: DecidedStage, card: ClassCard) -> str:
    entry = card.entry
    words = [] if entry.size is None else [counted(entry.size, "image", "images")]
    if card.missing:
        words.append(f"{card.missing:,} missing")
    if card.nearest_old is not None:
        words.append(f"nearest old class: {card.nearest_old.name}")
    if card.nearest_new is not None:
        words.append(f"nearest new class: {card.nearest_new.name}")
    dot = f'<span class="dot" style="background:{class_colour(entry.id)}"></span>'
    pictures = "".join(
        f"<h5>{kind}</h5>{contact_sheet(stage.images.pixels(places), f'{kind} images of {entry.name}', _COLUMNS)}"
        for kind, places in (("Typical", card.typical), ("Borderline", card.doubtful))
    )
    heading = f"<h4>{dot}{escape(entry.name)}</h4><p>{escape(' · '.join(words))}</p>"
    return f'<article class="card">{heading}{pictures}</article>'


def _interval(found: Mapping[str, Any]) -> str:
    if "classes" not in found:
        return "as many as were asked for"
    return f"estimated, between {found['classes']['low']} and {found['classes']['high']}"


def _found(stage: DecidedStage) -> Mapping[str, Any]:
    return stage.before.record.found or {}
