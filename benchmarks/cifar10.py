"""Learn five classes of CIFAR-10 with labels, discover the other five without, and write one JSON file per seed.

    python benchmarks/cifar10.py --data CIFAR10 [--preset paper] [--seeds 0 1 2] [--set training.epochs=30 ...]

CIFAR10 is a folder with train/<class>/ and test/<class>/, the original pickles, or an .npz file. The classes come in
label order: the first five are the base, the last five are discovered; `--split-seed` shuffles them. Each file is
written after the base stage and again after the discovery stage; a number that does not exist yet is null.
"""

import argparse
import dataclasses
import fcntl
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import inlay
from inlay import InlayError, Learner, branches
from inlay.bench.recipe import base_text, schedule_text
from inlay.bench.records import commit_of, hardware_of
from inlay.cli.progress import TerminalProgress
from inlay.data import ImageSet, Stages, load
from inlay.engine.checkpoint import write_json
from inlay.evaluation import Scores
from inlay.methods import check_settings
from inlay.pipeline import base_identity
from inlay.settings import Settings, preset, preset_names

RESULTS = Path(__file__).parent / "results" / "cifar10"
CLASSES, NEW_CLASSES, SIDE = 10, 5, 32
METRICS = ("old", "new", "all", "groups", "new_head", "old_head", "nmi", "ari")


@dataclass(frozen=True)
class Images:
    """The images that every seed sees."""

    base: ImageSet
    unlabelled: ImageSet
    labelled: ImageSet
    base_test: ImageSet
    test: ImageSet


def main() -> None:
    """Read the images, then learn, discover, score and write for each seed."""
    options = _parser().parse_args()
    try:
        settings = _settings(options)
        began = time.monotonic()
        images = _images(options)
        _tell(f"read {len(images.base) + len(images.labelled)} + {len(images.test)} images", began)
        if not options.only_load:
            options.out.mkdir(parents=True, exist_ok=True)
            for seed in options.seeds:
                with tempfile.TemporaryDirectory() as scratch:
                    measure(options, settings, images, seed, Path(scratch))
    except InlayError as error:
        sys.exit(f"Error: {error}")


def measure(options: argparse.Namespace, settings: Settings, images: Images, seed: int, scratch: Path) -> None:
    """Run one seed and write its file.

    Args:
        options: The command line.
        settings: Settings of both stages.
        images: The images.
        seed: Seed of everything random.
        scratch: An empty folder, for what is not kept.

    Raises:
        InlayError: If training diverges or a folder cannot be written.
    """
    record = _facts(options, settings, seed)
    file = options.out / f"{'-'.join(_labels(options, settings))}-seed{seed}.json"
    began = time.monotonic()
    # The discovery stage goes into a copy, as the base stage may serve other runs.
    run = _base_stage(options, settings, images.base, seed, scratch).save(scratch / "run")
    learner = Learner.load(run, device=options.device, progress=_progress())
    scores = learner.evaluate(images.base_test)
    record["base_metrics"] = _metrics(scores)
    record["seconds"]["base"] = learner.stages[0].seconds
    write_json(file, record)
    _tell(f"seed {seed}: base stage (trained in {learner.stages[0].seconds:.1f} s), base {scores.all:.4f}", began)
    began = time.monotonic()
    learner.settings = settings
    stage = learner.discover(images.unlabelled, NEW_CLASSES)
    assert stage is not None
    _tell(f"seed {seed}: discovery stage", began)
    began = time.monotonic()
    scores = learner.evaluate(images.test, match=images.labelled)
    record |= {"metrics": _metrics(scores), "matched_on": scores.matched_on, "merge": stage.merge, **_sizes(learner)}
    record["seconds"]["stage"] = stage.seconds
    write_json(file, record)
    shown = ", ".join(f"{name} {record['metrics'][name]:.4f}" for name in METRICS if name != "groups")
    _tell(f"seed {seed}: {shown}", began)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    change: dict[str, Any] = {"action": "append", "default": [], "type": _change, "metavar": "SETTING=VALUE"}
    add("--data", required=True, help="CIFAR-10: image folders, the original pickles or an .npz file")
    add("--out", type=Path, default=RESULTS, help="folder of the JSON files")
    add("--preset", choices=preset_names(), default="inlay", help="settings to start from")
    add("--seeds", type=int, nargs="+", default=[0, 1, 2])
    add("--set", dest="changes", help="change a setting, as in `inlay fit` and `inlay discover`", **change)
    add("--base-set", dest="base_changes", help="change a setting of the base stage (base.…)", **change)
    add("--base-cache", type=Path, help="folder in which base stages are kept and found again")
    add("--name", help="label of the configuration in the name of the file; by default the method")
    add("--split-seed", type=int, help="shuffle the classes by this seed instead of taking them in label order")
    add("--backbone", default="resnet18")
    add("--device", default="auto", help="auto, cpu or cuda")
    add("--commit", default=os.environ.get("COMMIT"), help="commit for the record; by default $COMMIT, else git's")
    add("--only-load", action="store_true", help="read the images into the cache and stop")
    return parser


def _change(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"write {name}=VALUE instead of {text}")
    return name, value


def _settings(options: argparse.Namespace) -> Settings:
    wrong = next((name for name, _ in options.base_changes if not name.startswith("base.")), None)
    if wrong is not None:
        raise InlayError(
            f"{wrong!r} is no setting of the base stage alone; write --base-set base.… or --set {wrong}=…."
        )
    settings = preset(options.preset).changed(_changes(options))
    check_settings(settings)
    return settings


def _changes(options: argparse.Namespace) -> dict[str, str]:
    return dict([*options.changes, *options.base_changes])


def _images(options: argparse.Namespace) -> Images:
    # Without a size every file would be opened once more, to find out whether all sizes are equal.
    train, test = (load(options.data, split=split, size=SIDE) for split in ("train", "test"))
    if len(train.class_names) != CLASSES:
        raise InlayError(
            f"CIFAR-10 has {CLASSES} classes but '{options.data}' has {len(train.class_names)}; name the folder that "
            f"holds its train and test folders."
        )
    stages = Stages(train, test, base=CLASSES - NEW_CLASSES, novel=[NEW_CLASSES], split_seed=options.split_seed)
    return Images(stages.base, stages.unlabelled(1), stages.labelled(1), stages.test(0), stages.test(1))


def _base_stage(options: argparse.Namespace, settings: Settings, images: ImageSet, seed: int, scratch: Path) -> Learner:
    """Return a learner after the base stage, which is trained only if the cache does not have it."""
    settings = _base_settings(settings)
    cache: Path = options.base_cache or scratch / "base"
    cache.mkdir(parents=True, exist_ok=True)
    run = cache / f"{options.backbone}-seed{seed}-{base_identity(images, options.backbone, settings, seed)}"
    with _waiting_for(cache / f"{run.name}.lock"):
        learner = Learner(
            options.backbone, settings=settings, seed=seed, device=options.device, run=run, progress=_progress()
        )
        learner.fit(images)
    return learner


def _base_settings(settings: Settings) -> Settings:
    """Return settings with everything that does not touch the base stage at one value, so that stages can share it."""
    common = preset(preset_names()[0])
    replay = dataclasses.replace(common.replay, statistics=settings.replay.statistics)
    return dataclasses.replace(common, base=settings.base, replay=replay)


@contextmanager
def _waiting_for(lock: Path) -> Iterator[None]:
    """Let processes that need the same base stage wait for the one that trains it."""
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _facts(options: argparse.Namespace, settings: Settings, seed: int) -> dict[str, Any]:
    """Return the record of a run of which nothing is known yet but how it is made."""
    return {
        "method": settings.method,
        "preset": options.preset,
        "name": options.name,
        "dataset": "cifar10",
        "seed": seed,
        "split": "first" if options.split_seed is None else f"seed {options.split_seed}",
        "steps": 1,
        "backbone": options.backbone,
        "base_recipe": base_text(settings),
        "schedule": schedule_text(settings.training),
        "metrics": dict.fromkeys(METRICS),
        "matched_on": None,
        "base_metrics": dict.fromkeys(METRICS),
        "parameters": None,
        "stored_bytes": None,
        "seconds": {"base": None, "stage": None},
        "merge": None,
        "settings": _changes(options),
        "hardware": hardware_of(options.device),
        "versions": {"inlay": inlay.__version__, "torch": str(torch.__version__), "python": platform.python_version()},
        "commit": options.commit or commit_of(Path(__file__).parent),
        "command": _command(options, seed),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _labels(options: argparse.Namespace, settings: Settings) -> list[str]:
    split = [] if options.split_seed is None else [f"split{options.split_seed}"]
    return ["cifar10", options.name or settings.method, *split]


def _metrics(scores: Scores) -> dict[str, object]:
    values = scores.to_json()
    return {name: values[name] for name in METRICS}


def _sizes(learner: Learner) -> dict[str, int]:
    """Count the parameters of the folded network and the head, and the bytes kept of all classes together."""
    known = learner.knowledge
    kept = known.statistics.tensors().values()
    network = branches.folded_parameters(known.network, known.form.example().to(known.device))
    return {
        "parameters": network + branches.count_parameters(known.head),
        "stored_bytes": sum(tensor.numel() * tensor.element_size() for tensor in kept),
    }


def _command(options: argparse.Namespace, seed: int) -> str:
    """Return the command that repeats one seed, without the folders of this machine."""
    words = ["python", "benchmarks/cifar10.py", "--data", "CIFAR10", "--preset", options.preset, "--seeds", str(seed)]
    for option, changes in (("--set", options.changes), ("--base-set", options.base_changes)):
        words += [word for name, value in changes for word in (option, f"{name}={value}")]
    for option, value in (("--name", options.name), ("--split-seed", options.split_seed)):
        words += [] if value is None else [option, str(value)]
    return shlex.join([*words, "--backbone", options.backbone])


def _progress() -> TerminalProgress:
    return TerminalProgress(Console(highlight=False, soft_wrap=True))


def _tell(text: str, began: float) -> None:
    print(f"{text}: {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
