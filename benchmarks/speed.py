"""Measure how fast stages train, beside the plain way to train them, and how fast networks evaluate and predict.

    python -m benchmarks.speed [--out benchmarks/results/speed-h200.json] [--data CIFAR10] [--modes ...] [--quick]

Training runs on random images of 32×32, each counted once whatever its views. Every row is a steady state of some
seconds; compiling, recording and warming up are timed apart. The plain way (benchmarks/plain.py) is measured first, in
the same process. With --data the base stage of CIFAR-10 is trained to its end, too. The tables are printed, and the
file is written again after each row; a row that fails is recorded with its error, and the rest go on.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import plain
from benchmarks.kernels import LAST_STEP, KernelWatch
from benchmarks.speed_records import PLAIN, Sheet, forget, header, record_file
from benchmarks.speed_tables import summary
from benchmarks.timed import MemoryWatch, TimedWorkshop

from inlay import Learner, branches
from inlay.data import ImageSet, Stages, load
from inlay.data.images import Images
from inlay.engine.device import find_device
from inlay.engine.feed import feed_of
from inlay.engine.inference import features_of
from inlay.engine.loop import Loop
from inlay.errors import InlayError
from inlay.knowledge import Knowledge
from inlay.pipeline import learn_base, learn_stage
from inlay.settings import TrainingSettings, preset

SIDE, TRIAL_STEPS, MATMUL_RUNS = 32, 12, 20
LEAST_RUNS, MOST_RUNS = 3, 200
# A mode is measured for as many steps as it would take if it were this much faster than the mode or trial before it.
EXPECTED_GAIN = 1.5
# Precision and pace of our modes, the slowest first; the last two are for GPUs.
OURS = {
    "eager-float32": ("float32", "eager"),
    "eager-bfloat16": ("bfloat16", "eager"),
    "graph": ("bfloat16", "graph"),
    "compile": ("bfloat16", "compile"),
}
# The same losses, weights and views as in the plain way.
PREFIXES = {"base": "base.training", "adm": "training"}
COMMON = {"base.contrastive": 0.0, "second_view": "strong", "branch.gate": "amm"}
NO_DIVERGENCE = {"learning_rate": plain.RATE, "schedule": "cosine"}
# The fixed schedule of the base stage on CIFAR-10.
CIFAR_SEEDS = (0, 1, 2)
CIFAR_SCHEDULE = {
    "schedule": "cosine",
    "epochs": 50,
    "batch": 512,
    "learning_rate": 0.2,
    "weight_decay": 1e-3,
    "nesterov": True,
}


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        network: Name of the backbone.
        images: Number of images to train on, and to evaluate and predict.
        work: Kind and batch of each piece of training.
        seconds: Least time of a steady state of ours.
        plain_seconds: The same for each number of workers of the plain way.
        workers: Numbers of workers to try.
        matmul_side: Side of the matrices whose product is timed.
    """

    network: str
    images: int
    work: tuple[tuple[plain.Kind, int], ...]
    seconds: float
    plain_seconds: float
    workers: tuple[int, ...]
    matmul_side: int


FULL = Scale("resnet18", 25_600, (("base", 512), ("base", 128), ("adm", 256)), 3.0, 4.0, (2, 4, 8, 16), 8192)
QUICK = Scale("resnet8", 128, (("base", 32), ("base", 16), ("adm", 16)), 0.2, 0.2, (1, 2), 256)


def main() -> None:
    """Measure everything, write it and print it."""
    options = _parser().parse_args()
    try:
        device = find_device(options.device)
        scale = QUICK if options.quick else FULL
        print(summary(measure(scale, device, options, record_file("speed", options, device))))
    except InlayError as error:
        sys.exit(f"Error: {error}")


def measure(scale: Scale, device: torch.device, options: argparse.Namespace, out: Path | None) -> dict[str, Any]:
    """Measure everything and return the record.

    Args:
        scale: How much is measured.
        device: Where.
        options: The command line: `modes`, `data` and `quick`.
        out: File of the record; None writes nothing.
    """
    modes = options.modes or [PLAIN, *(list(OURS) if device.type == "cuda" else list(OURS)[:2])]
    parts: dict[str, Any] = {"matmul": None, "rows": [], "inference": None, "base_to_target": None}
    sheet = Sheet(header(options, device, scale.network) | parts, out)
    product = matmul(scale.matmul_side, device)
    sheet.note(f"matmul: {product['tflops']:.3g} TFLOP/s", matmul=product)
    images = random_images(scale.images)
    # Before anything of ours has run, so that no setting of ours can touch it.
    for kind, batch in scale.work if PLAIN in modes else ():
        sheet.add_row(kind, batch, PLAIN, partial(plain_way, kind, batch, scale, images, device))
    base = _base_learner(scale, device, images)
    for kind, batch in scale.work:
        rate: float | None = None
        for mode in (mode for mode in OURS if mode in modes):
            work = partial(ours, kind, batch, mode, scale, images, base, rate)
            rate = sheet.add_row(kind, batch, mode, work).get("images_per_s", rate)
    sheet.note("evaluation and prediction", inference=inference(base, images, scale.seconds))
    if options.data is not None:
        sheet.note("base stage of CIFAR-10", base_to_target=base_to_target(options.data, scale.network, device))
    return sheet.record


def matmul(side: int, device: torch.device) -> dict[str, Any]:
    """Time a bfloat16 product of two square matrices: the limit that training is compared with."""
    left, right = (torch.randn(side, side, device=device).bfloat16() for _ in range(2))
    for _ in range(MATMUL_RUNS // 4):
        left @ right
    _wait(device)
    began = time.perf_counter()
    for _ in range(MATMUL_RUNS):
        left @ right
    _wait(device)
    seconds = (time.perf_counter() - began) / MATMUL_RUNS
    return {"side": side, "dtype": "bfloat16", "tflops": 2 * side**3 / seconds / 1e12}


def random_images(count: int) -> ImageSet:
    """Return labelled random images."""
    pixels = np.random.default_rng(0).integers(0, 256, (count, SIDE, SIDE, 3), dtype=np.uint8)
    return ImageSet.from_arrays(pixels, [index % plain.OLD_CLASSES for index in range(count)])


def plain_way(kind: plain.Kind, batch: int, scale: Scale, images: ImageSet, device: torch.device) -> dict[str, Any]:
    """Measure the plain way with the best number of workers.

    Raises:
        InlayError: If torchvision cannot be used.
    """
    assert images.labels is not None
    pixels = images.images.permute(0, 2, 3, 1).contiguous().numpy()
    dataset = plain.PlainImages(pixels, images.labels.tolist(), plain.torchvision_views(kind, SIDE))
    loss = plain.loss_of(kind, scale.network, SIDE, device)
    watch = MemoryWatch()
    watch.start(PLAIN, 0, 0)
    found = plain.best_of_workers(loss, dataset, batch, scale.workers, device, scale.plain_seconds)
    watch.finish()
    return found | {"peak_memory": watch.peak}


def ours(
    kind: plain.Kind, batch: int, mode: str, scale: Scale, images: ImageSet, base: Learner, expected: float | None
) -> dict[str, Any]:
    """Train a stage by the real pipeline for about the time of the scale, and return its figures.

    Args:
        kind: "base" or "adm".
        batch: Images per step.
        mode: One of `OURS`.
        scale: How much is measured.
        images: What is trained on.
        base: A learner that knows the base classes: the start of novel stages.
        expected: Images per second of the mode before; None if there was none, then a short trial finds them out.
    """
    precision, pace = OURS[mode]

    def train(precision: str, pace: str, steps: int, kernels: KernelWatch | None = None) -> tuple[Loop, MemoryWatch]:
        training = NO_DIVERGENCE | {"batch": batch, "precision": precision, "pace": pace}
        training["epochs"] = math.ceil(steps * batch / len(images))
        changes = {f"{PREFIXES[kind]}.{name}": value for name, value in training.items()}
        watch = MemoryWatch()
        workshop = TimedWorkshop(base.device, watch, last_step=steps, kernels=kernels)
        settings = preset("paper").changed(COMMON | changes)
        if kind == "base":
            learn_base(images, scale.network, settings, 0, workshop)
        else:
            learn_stage(base.knowledge, images, plain.NEW_CLASSES, settings, workshop)
        return workshop.loops[0], watch

    if expected is None:
        expected = _rate(train(precision, "eager", TRIAL_STEPS)[0])
    loop, watch = train(precision, pace, max(TRIAL_STEPS, round(EXPECTED_GAIN * scale.seconds * expected / batch)))
    kernels = KernelWatch()
    if pace == "compile" and base.device.type == "cuda":
        train(precision, pace, LAST_STEP + 1, kernels)
    return {
        "images_per_s": _rate(loop),
        "images": loop.timing.images,
        "seconds": loop.timing.train_seconds,
        "waiting_s": loop.timing.waiting_seconds,
        "warm_up_s": loop.timing.warm_up_seconds,
        "peak_memory": watch.peak,
        "kernels_ms": kernels.found,
    }


def inference(learner: Learner, images: ImageSet, least: float) -> dict[str, float]:
    """Measure features of images that are on the device, predictions of arrays, and the prediction of one image.

    Features are those of the folded network: that of the learner keeps its batch norms until its first discovery stage.

    Args:
        learner: Who predicts.
        images: What is evaluated and predicted.
        least: Seconds over which each is repeated, but for `LEAST_RUNS` to `MOST_RUNS` times; the median counts.
    """
    known, arrays = learner.knowledge, images.images.numpy()
    feed = feed_of(images.pixels, learner.device)
    folded = branches.fold(known.network, known.form.example().to(learner.device))

    def seconds(work: Callable[[], object]) -> float:
        work()
        _wait(learner.device)
        times: list[float] = []
        while len(times) < LEAST_RUNS or (sum(times) < least and len(times) < MOST_RUNS):
            began = time.perf_counter()
            work()
            _wait(learner.device)
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    return {
        "images": len(images),
        "evaluation_images_per_s": len(images) / seconds(lambda: features_of(folded, feed, known.form.prepare)),
        "prediction_images_per_s": len(images) / seconds(lambda: learner.predict(arrays)),
        "latency_ms": 1000 * seconds(lambda: learner.predict(arrays[:1])),
    }


def base_to_target(data: str, network: str, device: torch.device) -> dict[str, Any]:
    """Train the base stage of CIFAR-10 on a fixed schedule with each seed.

    Args:
        data: CIFAR-10: image folders, the original pickles or an .npz file.
        network: Name of the backbone.
        device: Where.

    Raises:
        InlayError: If the data are not CIFAR-10.
    """
    train, test = (load(data, split=split, size=SIDE) for split in ("train", "test"))
    stages = Stages(train, test, base=plain.OLD_CLASSES, novel=[plain.NEW_CLASSES])
    pace = "compile" if device.type == "cuda" else "eager"
    changes = {f"base.training.{name}": value for name, value in (CIFAR_SCHEDULE | {"pace": pace}).items()}
    settings = preset("paper").changed(COMMON | changes)
    accuracies, timings = [], []
    for seed in CIFAR_SEEDS:
        workshop = TimedWorkshop(device)
        known = learn_base(stages.base, network, settings, seed, workshop)
        accuracies.append(_accuracy(known, stages.test(0)))
        timings.append(workshop.loops[0].timing)
        print(f"seed {seed}: {accuracies[-1]:.4f} in {timings[-1].train_seconds:.1f} s", flush=True)
        forget()
    return {
        "schedule": _schedule(settings.base.training),
        "seeds": list(CIFAR_SEEDS),
        "accuracies": accuracies,
        "seconds": [timing.train_seconds for timing in timings],
        "warm_up_seconds": [timing.warm_up_seconds for timing in timings],
        "mean_accuracy": statistics.mean(accuracies),
        "mean_seconds": statistics.mean(timing.train_seconds for timing in timings),
    }


def _accuracy(known: Knowledge, test: Images) -> float:
    assert test.labels is not None
    names = [entry.name for entry in known.registry]
    if tuple(names) != test.class_names:
        raise InlayError(f"The test images have other classes than the base stage: {', '.join(test.class_names)}.")
    return float((known.logits(test).argmax(dim=1) == test.labels).float().mean())


def _base_learner(scale: Scale, device: torch.device, images: ImageSet) -> Learner:
    """Return a learner of the base classes, hardly trained: its speed is that of any other."""
    schedule = {f"base.training.{name}": value for name, value in NO_DIVERGENCE.items()}
    schedule |= {"base.training.epochs": 1, "base.training.batch": 512, "base.training.pace": "eager"}
    learner = Learner(scale.network, preset="paper", settings=COMMON | schedule, device=str(device))
    learner.fit(images)
    return learner


def _schedule(training: TrainingSettings) -> str:
    return (
        f"{training.epochs} epochs, batch {training.batch}, learning rate {training.learning_rate:g}, "
        f"{training.schedule}, weight decay {training.weight_decay:g}, {training.pace}, precision {training.precision}"
    )


def _rate(loop: Loop) -> float:
    return loop.timing.images / loop.timing.train_seconds


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/speed-<device>.json; none with --quick")
    parser.add_argument("--data", help="CIFAR-10: image folders, the original pickles or an .npz file")
    parser.add_argument("--modes", nargs="+", choices=[PLAIN, *OURS], help="ways to train; default: all of the device")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument(
        "--quick", action="store_true", help="a small network and tiny counts, to see that all of it runs"
    )
    return parser


if __name__ == "__main__":
    main()
