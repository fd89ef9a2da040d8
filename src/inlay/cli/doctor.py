"""The command that looks at images before anything is learned from them."""

import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Annotated

import torch
import typer
from rich.table import Table

from inlay.backbones.named import FEW_FOR_SCRATCH, begin
from inlay.backbones.pretrained import NAME as PRETRAINED
from inlay.backbones.pretrained import is_installed
from inlay.choice import choose_network, suits_pretrained
from inlay.cli.options import AsJson, Device
from inlay.cli.progress import TerminalProgress
from inlay.cli.shown import console, errors
from inlay.data.checkup import examine
from inlay.data.findings import Findings, SetFindings
from inlay.data.imagesets import CHANNELS
from inlay.data.pixels import Size
from inlay.engine.device import find_device
from inlay.engine.progress import counting
from inlay.errors import Interrupted
from inlay.settings import preset

__all__ = ["advice", "doctor", "repairs"]

_FEW_OF_A_CLASS = 20
_UNEVEN = 10
_PASSED = 8
_MOST_CLASSES_SHOWN = 20
_CONVERTIBLE = {".heic", ".heif", ".jxl", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw"}
_MODES = {
    **{"RGB": "colour", "L": "grey", "1": "black and white", "P": "palette", "CMYK": "print colours"},
    **{"RGBA": "colour with transparency", "LA": "grey with transparency", "I;16": "16-bit grey"},
    **{"I": "32-bit grey", "F": "floating-point grey"},
}


def doctor(
    path: Annotated[str, typer.Argument(help="Folder of images, tar shards, .npz file or list.", show_default=False)],
    as_json: AsJson = False,
    device: Device = "auto",
) -> None:
    """Look at images: what is there, what is broken, what a run will cost.

    The exit code is 0 if the images can be used, and 1 if something must be repaired first.

    Example: inlay doctor photos
    """
    place = find_device(device)
    progress = TerminalProgress(errors if as_json else console)
    try:
        findings = examine(path, watch=partial(counting, progress), read_at=partial(_read_at, device=place))
    except KeyboardInterrupt as stop:
        raise Interrupted("Stopped before all images were looked at; repeat the command to start again.") from stop
    if as_json:
        sentences = {"repairs": repairs(findings), "advice": advice(findings)}
        print(json.dumps({**findings.to_json(), **sentences}, indent=1))
    else:
        _show(findings, place)
    if not findings.usable:
        raise typer.Exit(1)


def repairs(findings: Findings) -> list[str]:
    """Say what must be repaired before the images can be used, one sentence each."""
    found = list(findings.problems)
    if findings.damaged:
        first = next(iter(findings.reasons))
        found.append(
            f"{_count(findings.damaged, 'file')} cannot be read, such as '{first}'; replace or delete what is damaged, "
            "or pass --skip-bad to fit and discover."
        )
    if not findings.images and not found:
        found.append(f"'{findings.path}' holds no images; name a folder of images.")
    return found


def advice(findings: Findings) -> list[str]:
    """Say what else should be known or done, one sentence each."""
    return [*_on_sets(findings), *_on_pictures(findings), *_on_repeats(findings)]


def _on_sets(findings: Findings) -> Iterator[str]:
    if findings.layout == "several sets":
        yield f"'{findings.path}' holds {len(findings.sets)} sets of images; name one at a time to fit and discover."
    if findings.images and not any(each.classes for each in findings.sets):
        yield "No image has a class; give such images to discover, and to fit a folder with one sub-folder per class."
    for each in findings.sets:
        if each.classes:
            yield from _on_classes(each)
            yield from _on_network(each, findings.size)
        if each.streamed:
            yield (
                f"{_name(each)} takes more than a quarter of the memory when decoded, so its images are decoded while "
                "they are used; choose a smaller --size to keep them in memory."
            )


def _on_classes(each: SetFindings) -> Iterator[str]:
    most, least = (choose(each.classes, key=each.classes.__getitem__) for choose in (max, min))
    few = [name for name, count in each.classes.items() if count < _FEW_OF_A_CLASS]
    if len(each.classes) == 1:
        yield f"{_name(each)} has one class only; fit needs a folder for each of at least two."
    if few:
        subject = f"{len(few)} classes have" if len(few) > 1 else "1 class has"
        yield (
            f"In {_name(each)} {subject} fewer than {_FEW_OF_A_CLASS} images, such as '{few[0]}' with "
            f"{each.classes[few[0]]}; add images or remove such classes."
        )
    if each.classes[most] > _UNEVEN * each.classes[least]:
        yield (
            f"In {_name(each)} '{most}' has {each.classes[most]:,} images and '{least}' {each.classes[least]:,}; add "
            "images of the small classes, for they are learned worse."
        )


def _on_network(each: SetFindings, size: Size | None) -> Iterator[str]:
    if size is None or each.split == "test" or each.images >= FEW_FOR_SCRATCH or not suits_pretrained(size, CHANNELS):
        return
    subject = f"{_name(each)} has {_count(each.images, 'image')}, too few to train a network from scratch"
    if is_installed():
        yield f"{subject}; fit takes a pretrained one, {PRETRAINED}."
    else:
        yield f'{subject}; pip install "inlay[pretrained]" gives fit a pretrained one.'


def _on_pictures(findings: Findings) -> Iterator[str]:
    sizes = findings.sizes
    if sizes and sizes.too_small:
        yield (
            f"{_count(sizes.too_small, 'image')} would be enlarged more than twofold, the smallest from "
            f"{_count(sizes.shorter_sides[0], 'pixel')}; replace them by larger ones, or choose a smaller --size."
        )
    if sizes and sizes.elongated:
        yield (
            f"{_count(sizes.elongated, 'image')} would lose more than half to the square cut from the middle; crop "
            "them to what matters."
        )
    raw = {suffix: count for suffix, count in findings.other_files.items() if suffix in _CONVERTIBLE}
    if raw:
        yield f"Files of these kinds are not read: {_listed(raw)}; convert them to JPEG or PNG."


def _on_repeats(findings: Findings) -> Iterator[str]:
    kinds = {
        "within classes": ("repeated image", "in the same class or set", "keep one copy of each"),
        "between classes": ("picture", "in more than one class", "keep each in the right one"),
        "between sets": ("picture", "in more than one set", "keep test images out of what is learned from"),
    }
    for kind, repeats in findings.repeats.items():
        if repeats.count:
            noun, where, what_to_do = kinds[kind]
            first, second = repeats.examples[0]
            yield f"{_count(repeats.count, noun)} found {where}, such as '{first}' and '{second}'; {what_to_do}."


def _show(findings: Findings, device: torch.device) -> None:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in (*_picture_rows(findings), *_set_rows(findings, device)):
        table.add_row(name, text)
    console.print(table, soft_wrap=False)
    for heading, sentences in (("Repair first:", repairs(findings)), ("Worth knowing:", advice(findings))):
        if sentences:
            console.print(f"\n{heading}")
        for sentence in sentences:
            console.print(f"- {sentence}")
        if sentences and heading == "Repair first:":
            for file, reason in findings.reasons.items():
                console.print(f"  {file}: {reason}")
    if findings.usable:
        console.print(f"\n{_next(findings, device)}")


def _picture_rows(findings: Findings) -> Iterator[tuple[str, str]]:
    yield "path", findings.path
    yield "layout", findings.layout
    yield "images", f"{findings.images:,}"
    if (sizes := findings.sizes) is not None:
        least, median, largest = sizes.shorter_sides
        narrow, middle, wide = sizes.aspects
        height, width = sizes.common
        yield "shorter side", f"{least} to {largest}, median {median:g}"
        yield "most common size", f"{width}×{height}, {_count(sizes.common_count, 'image')}"
        yield "width to height", f"{narrow:.2f} to {wide:.2f}, median {middle:.2f}"
        yield "formats", _listed(findings.formats)
        yield "colours", _listed({_MODES.get(mode, mode): count for mode, count in findings.modes.items()})
        yield "turned by EXIF", f"{findings.turned:,}"
    yield "damaged", f"{findings.damaged:,}"
    if findings.other_files:
        yield "other files", _listed({suffix or "no suffix": count for suffix, count in findings.other_files.items()})
    if findings.size is not None:
        height, width = findings.size
        yield "size to read at", f"{width}×{height}"


def _set_rows(findings: Findings, device: torch.device) -> Iterator[tuple[str, str]]:
    for each in findings.sets:
        yield "", ""
        yield "set", f"{_name(each)}, {each.layout}, {_count(each.images, 'image')}"
        if each.classes:
            smallest_first = sorted(each.classes, key=each.classes.__getitem__)
            shown = smallest_first if len(smallest_first) > _MOST_CLASSES_SHOWN else list(each.classes)
            more = f" and {len(shown) - _MOST_CLASSES_SHOWN} larger ones" * (len(shown) > _MOST_CLASSES_SHOWN)
            counts = {name: each.classes[name] for name in shown[:_MOST_CLASSES_SHOWN]}
            yield f"{_count(len(shown), 'class', 'classes')}", _listed(counts) + more
        yield "memory decoded", f"{each.decoded_bytes / 1e6:,.1f} MB, {_place(each, device)}"
        if each.split != "test":
            yield _cost(each, findings.size, device)


def _cost(each: SetFindings, size: Size | None, device: torch.device) -> tuple[str, str]:
    settings = preset("inlay")
    if size is not None:
        settings = settings.changed(choose_network(size, CHANNELS, device).changes)
    verb, training = ("fit", settings.base.training) if each.classes else ("discover", settings.training)
    images = _count(each.images, "image")
    if training.epochs == 0:
        seconds = each.images * _pass_seconds(_read_at(size, device) if size else None, device)
        about = f", about {_duration(seconds)}" if seconds else ""
        return f"cost of {verb}", f"{images} once through a pretrained network on {device.type}{about}, no training"
    steps = training.epochs * math.ceil(each.images / training.batch)
    told = f"{images} × {training.epochs} epochs = {each.images * training.epochs:,}, in {steps:,} steps"
    return f"cost of {verb}", f"{told} on {device.type}"


def _read_at(size: Size, device: torch.device) -> Size:
    side = choose_network(size, CHANNELS, device).side
    return size if side is None else (side, side)


@cache
def _pass_seconds(size: Size | None, device: torch.device) -> float:
    """Measure how long an image takes to pass through the pretrained network; 0 where no size is known."""
    if size is None:
        return 0.0
    network = begin(PRETRAINED, CHANNELS, size, torch.Generator()).network.eval().to(device)
    images, seconds = torch.zeros(_PASSED, CHANNELS, *size, device=device), 0.0
    with torch.inference_mode():
        for _ in range(2):
            began = time.monotonic()
            # Reading a value waits for the device.
            float(network(images).sum())
            seconds = time.monotonic() - began
    return seconds / _PASSED


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _place(each: SetFindings, device: torch.device) -> str:
    if each.streamed:
        return "decoded from disk while training"
    # Training keeps images on a GPU if they take at most half of what is free there.
    if device.type == "cuda" and 2 * each.decoded_bytes <= torch.cuda.mem_get_info(device)[0]:
        return "kept on the device"
    return "kept in memory"


def _next(findings: Findings, device: torch.device) -> str:
    """Say what to do next: a rehearsal, where there is anything to rehearse."""
    learned = [each for each in findings.sets if each.split != "test"]
    if not learned:
        return f"Ready; score a run on them:\n{shlex.join(['inlay', 'evaluate', 'run.inlay', findings.sets[0].path])}"
    labelled = [each for each in learned if len(each.classes) > 1]
    if labelled:
        words = ["inlay", "fit", labelled[0].path, "--out", "run.inlay"]
    else:
        words = ["inlay", "discover", "run.inlay", learned[0].path]
    if findings.size is not None and not choose_network(findings.size, CHANNELS, device).trains:
        return f"Ready; {'learn what has labels' if labelled else 'find what is new'}:\n{shlex.join(words)}"
    return f"Ready; a few real steps tell the time that a run takes:\n{shlex.join([*words, '--dry-run'])}"


def _name(each: SetFindings) -> str:
    return f"'{each.path}'" + (f" ({each.split})" if each.split else "")


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
