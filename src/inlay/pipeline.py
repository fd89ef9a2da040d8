"""From images to knowledge: the base stage, the discovery stages and those of labelled new classes, each a function.

All are deterministic functions of their inputs: whatever a stopped stage had not kept is computed again, on one
CPU to the same bits.
"""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from inlay import backbones
from inlay.data.images import Images
from inlay.data.normalisation import normalisation_of
from inlay.densities import with_densities
from inlay.discovery.refit import refit_linear
from inlay.discovery.repair import closed_head
from inlay.discovery.statistics import ClassStatistics, class_statistics
from inlay.engine.checkpoint import read_facts
from inlay.engine.feed import Feed, feed_of, joined_pixels
from inlay.engine.inference import features_of, first_images
from inlay.engine.loop import Companions, Keeping, Loop
from inlay.engine.progress import Progress, QuietProgress
from inlay.engine.randomness import derive_seed, generator
from inlay.engine.work import Work
from inlay.engine.world import World
from inlay.errors import InlayError, TrainingDivergedError
from inlay.exemplars import Exemplars
from inlay.heads import ConcatenatedHead
from inlay.held_out import after_a_stage
from inlay.knowledge import InputForm, Knowledge, StageRecord
from inlay.medoids import note_medoids
from inlay.methods import (
    BaseTask,
    StageOutcome,
    StageTask,
    adaptive_discovering_and_merging,
    labelled,
    method,
    train_base,
)
from inlay.methods.trunk import check_backbone, starting_network
from inlay.registry import ClassRegistry
from inlay.sealed import making_sense_of
from inlay.settings import Settings, TrainingSettings

__all__ = [
    "Workshop",
    "base_identity",
    "labelled_identity",
    "learn_base",
    "learn_labelled",
    "learn_stage",
    "stage_identity",
]


@dataclass(frozen=True)
class Workshop:
    """Where and how stages are computed; on one device, nothing here changes their outcome.

    Attributes:
        device: Device of networks and images.
        progress: Receiver of news.
        checkpoint: Checkpoint file of the stage under way; None keeps nothing.
        checkpoint_seconds: Time between checkpoints.
        label: What the work is for, before the name of each stage in the news.
    """

    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: Progress = field(default_factory=QuietProgress)
    checkpoint: Path | None = None
    checkpoint_seconds: float = 30.0
    label: str = ""

    @making_sense_of("checkpoint")
    def seconds_before(self) -> float:
        """Return the time that earlier tries at the stage have put into its checkpoint."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return 0.0
        return float(read_facts(self.checkpoint).get("seconds", 0.0))

    def loop_maker(
        self,
        name: str,
        settings: TrainingSettings,
        feed: Feed,
        seed: int,
        fingerprint: str,
        settings_name: str = "training",
    ) -> Callable[[Work, Companions | None], Loop]:
        """Return a function that makes the training loop for some work."""
        keeping = Keeping(self.checkpoint, self.checkpoint_seconds, fingerprint)

        def make(work: Work, companions: Companions | None = None) -> Loop:
            loop = Loop(
                self.label + name, work, settings, feed, seed, companions, keeping, self.progress, settings_name
            )
            self.made(loop)
            return loop

        return make

    def made(self, loop: Loop) -> None:
        """Look at a loop before it runs; for those who measure."""

    def settled(self, outcome: StageOutcome) -> None:
        """Look at the outcome of a stage of new classes; for those who measure."""


def learn_base(
    images: Images,
    backbone: str | nn.Module,
    settings: Settings,
    seed: int,
    workshop: Workshop,
    source: str = "",
    features: Tensor | None = None,
) -> Knowledge:
    """Learn labelled base classes.

    The network is kept as it was trained, with its batch norms, so that later stages may train all of it.

    Args:
        images: Labelled images of at least two classes.
        backbone: Name of a backbone, or a module from images to features [N, D], which is not changed.
        settings: All settings of the run.
        seed: Seed of the run.
        workshop: Where it is computed.
        source: Where the images were, see `inlay.medoids.place_of`.
        features: Their features by the network, if it is not trained and has been asked already, [N, D].

    Raises:
        InlayError: If the backbone does not fit, or training is stopped or diverges.
    """
    start, earlier = time.monotonic(), workshop.seconds_before()
    assert images.labels is not None
    own = derive_seed(seed, "base")
    begun = backbones.begin(backbone, images.channels, images.size, generator(own, "backbone"))
    network = begun.network
    pixels = begun.expected or normalisation_of(images.level_counts())
    form = InputForm(images.size, images.channels, pixels.mean, pixels.std)
    feature_size = backbones.feature_size(network, form.example())
    check_backbone(network, settings.branch, form.example())
    network.to(workshop.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    feed, labels = feed_of(images.pixels, workshop.device), images.labels.to(workshop.device)
    classes = len(images.class_names)
    task = BaseTask(network, feature_size, feed, labels, classes, form.normalise, settings.base, own)
    identity = base_identity(images, backbone, settings, seed)
    training = settings.base.training
    make_loop = workshop.loop_maker("the base stage", training, feed, own, identity, "base.training")
    head = train_base(task, lambda work: make_loop(work, None))
    network.eval().requires_grad_(False)
    features = features_of(network, feed, form.prepare) if features is None else features
    _check_finite(features, training)
    if training.epochs == 0:
        weight, bias = refit_linear(features, labels, classes, settings.classifier.refit_decay)
        head.load_state_dict({"weight": weight, "bias": bias})
    statistics = class_statistics(features, labels, classes, settings.replay.statistics)
    _agree_on(network, head, statistics)
    registry = ClassRegistry()
    sizes = torch.bincount(labels, minlength=classes).tolist()
    registry.add(images.class_names, stage=0, kind="labelled", sizes=sizes)
    note_medoids(registry, 0, images, features, labels, source)
    seconds = earlier + time.monotonic() - start
    record = StageRecord(0, "base", images.class_names, len(images), seconds, identity=identity, source=source)
    return Knowledge(network, head, statistics, registry, form, begun.name, settings, seed, record, begun.architecture)


def learn_stage(
    knowledge: Knowledge,
    images: Images,
    classes: int,
    settings: Settings,
    workshop: Workshop,
    identity: str | None = None,
    source: str = "",
    features: Tensor | None = None,
) -> Knowledge:
    """Discover new classes in unlabelled images and merge them into the network.

    Args:
        knowledge: What is known; it is not changed.
        images: Unlabelled images.
        classes: Number of new classes.
        settings: All settings of the stage.
        workshop: Where it is computed.
        identity: Hash of what decided the outcome, if these images were chosen from more; None makes it from them.
        source: Where the images were, see `inlay.medoids.place_of`.
        features: What `knowledge.features` says of the images, if it has been asked already, [N, D].

    Raises:
        InlayError: If training is stopped or diverges, or the merge is not exact.
    """
    identity = identity or stage_identity(images, classes, settings, knowledge.seed, knowledge.record.index + 1)
    return _with_new_classes(knowledge, images, classes, settings, workshop, identity, source, features=features)


def learn_labelled(
    knowledge: Knowledge,
    images: Images,
    settings: Settings,
    workshop: Workshop,
    exemplars: Exemplars | None = None,
    source: str = "",
) -> Knowledge:
    """Learn new classes from labelled images and merge them into the network.

    Args:
        knowledge: What is known; it is not changed.
        images: Labelled images of new classes, whose names they give.
        settings: All settings of the stage.
        workshop: Where it is computed.
        exemplars: Images of old classes that were kept, which are learned again; None does without.
        source: Where the images were, see `inlay.medoids.place_of`.

    Raises:
        InlayError: If training is stopped or diverges, or the merge is not exact.
    """
    identity = labelled_identity(images, settings, knowledge.seed, knowledge.record.index + 1)
    return _with_new_classes(knowledge, images, images.class_names, settings, workshop, identity, source, exemplars)


def _with_new_classes(
    knowledge: Knowledge,
    images: Images,
    classes: int | tuple[str, ...],
    settings: Settings,
    workshop: Workshop,
    identity: str,
    source: str,
    exemplars: Exemplars | None = None,
    features: Tensor | None = None,
) -> Knowledge:
    """Learn new classes, given by their names or, if they are to be found, by their number."""
    start, earlier = time.monotonic(), workshop.seconds_before()
    index, given = knowledge.record.index + 1, not isinstance(classes, int)
    pixels = images.pixels if exemplars is None else joined_pixels(images.pixels, exemplars.images)
    feed = feed_of(pixels, workshop.device)
    task = _stage_task(knowledge, feed, len(classes) if not isinstance(classes, int) else classes, settings)
    task = replace(task, known_features=features)
    if given:
        task = replace(task, labels=_labels_of(images, exemplars, task.old_classes).to(workshop.device))
    work = _identity_of_work(identity, knowledge.registry, exemplars)
    make_loop = workshop.loop_maker(f"stage {index}", settings.training, feed, task.seed, work)
    chosen = labelled.METHOD if given else method(settings.method)
    outcome = adaptive_discovering_and_merging(task, chosen, make_loop)
    retired = [entry.id for entry in knowledge.registry.retired()]
    if retired and isinstance(outcome.head, nn.Linear):
        outcome = replace(outcome, head=closed_head(outcome.head, retired))
    _agree_on(outcome.network, outcome.head, outcome.statistics)
    workshop.settled(outcome)
    World.current().broadcast([outcome.assignments])
    registry = ClassRegistry.from_json(knowledge.registry.to_json())
    sizes = torch.bincount(outcome.assignments, minlength=task.classes).tolist()
    entries = registry.add(classes, stage=index, kind="labelled" if given else "discovered", sizes=sizes)
    note_medoids(registry, index, images, outcome.features, outcome.assignments, source)
    record = StageRecord(
        index=index,
        kind="labelled" if given else "novel",
        class_names=tuple(entry.name for entry in entries),
        images=len(images),
        seconds=earlier + time.monotonic() - start,
        identity=identity,
        fingerprints=images.fingerprints(),
        clusters=tuple(outcome.assignments.tolist()),
        merge=_merge_facts(outcome),
        source=source,
    )
    after = replace(
        knowledge,
        network=outcome.network,
        head=outcome.head,
        statistics=outcome.statistics,
        registry=registry,
        settings=settings,
        record=record,
        reference=after_a_stage(knowledge.reference, outcome.drift, settings.branch.gate == "frozen"),
        base_head=_adviser(knowledge, settings),
    )
    return with_densities(after)


def _identity_of_work(identity: str, registry: ClassRegistry, exemplars: Exemplars | None) -> str:
    """Return a hash of what decides the training of a stage, of which some may change while the stage is stopped."""
    kept = [] if exemplars is None else [exemplars.fingerprint()]
    decided = [[entry.status, entry.size] for entry in registry] if registry.retired() else []
    return _hash(identity, *kept, *decided) if kept or decided else identity


def _adviser(knowledge: Knowledge, settings: Settings) -> nn.Linear | None:
    """Return the head of the base stage, if the stage that follows leaves its features as they are."""
    if not settings.classifier.advised or settings.branch.gate != "frozen":
        return None
    if knowledge.record.index == 0 and isinstance(knowledge.head, nn.Linear):
        return knowledge.head
    return knowledge.base_head


def _labels_of(images: Images, exemplars: Exemplars | None, old_classes: int) -> Tensor:
    """Return the class of each image among all classes, then that of each exemplar."""
    assert images.labels is not None
    old = [] if exemplars is None else [exemplars.classes]
    return torch.cat([old_classes + images.labels.cpu(), *old])


def _check_finite(features: Tensor, training: TrainingSettings) -> None:
    if not bool(torch.isfinite(features).all()):
        raise TrainingDivergedError(
            f"The base stage ended with features that are not finite; try a lower learning rate, such as "
            f"--set base.training.learning_rate={training.learning_rate / 10:g} --restart."
        )


def _stage_task(knowledge: Knowledge, feed: Feed, classes: int, settings: Settings) -> StageTask:
    example = knowledge.form.prepare(first_images(feed, 2))
    return StageTask(
        network=starting_network(knowledge.network, settings.branch, example),
        head=_joint_head(knowledge),
        statistics=knowledge.statistics,
        feed=feed,
        classes=classes,
        normalise=knowledge.form.normalise,
        settings=settings,
        seed=derive_seed(knowledge.seed, "stage", knowledge.record.index + 1),
    )


def _joint_head(knowledge: Knowledge) -> nn.Linear:
    if isinstance(knowledge.head, ConcatenatedHead):
        raise InlayError(
            f"The method {knowledge.settings.method!r} trains no joint head, so no stage can follow one of it; repeat "
            f"the run with another method, such as adm or inlay."
        )
    return knowledge.head


def _agree_on(network: nn.Module, head: nn.Module, statistics: ClassStatistics) -> None:
    """Make the knowledge of all processes that of the main one, as a GPU may round in two ways."""
    measured = [statistics.mean, statistics.counts, statistics.std, statistics.correlation]
    tensors = [*network.state_dict().values(), *head.state_dict().values(), *measured]
    World.current().broadcast(tensor for tensor in tensors if tensor is not None)


def base_identity(images: Images, backbone: str | nn.Module, settings: Settings, seed: int) -> str:
    """Return a hash of everything that decides the outcome of a base stage."""
    name = backbone if isinstance(backbone, str) else repr(backbone)
    return _hash(images.fingerprint(), settings.to_json(), seed, name)


def stage_identity(images: Images, classes: int, settings: Settings, seed: int, index: int, *further: object) -> str:
    """Return a hash of everything, besides the stages before, that decides the outcome of a discovery stage.

    Args:
        images: The images that are given.
        classes: Number of new classes; 0 if it is to be estimated.
        settings: All settings of the stage.
        seed: Seed of the run.
        index: Number of the stage.
        further: What else decides it, as JSON can hold it.
    """
    return _hash(images.fingerprint(), settings.to_json(), seed, index, classes, *further)


def labelled_identity(images: Images, settings: Settings, seed: int, index: int) -> str:
    """Return a hash of everything, besides the stages before, that decides the outcome of a stage of labelled images.

    Args:
        images: The images that are learned.
        settings: All settings of the stage.
        seed: Seed of the run.
        index: Number of the stage.
    """
    return stage_identity(images, len(images.class_names), settings, seed, index, "labelled")


def _merge_facts(outcome: StageOutcome) -> dict[str, float | int] | None:
    report = outcome.merge
    if report is None or report.max_abs_diff is None:
        return None
    return {
        "max_abs_diff": report.max_abs_diff,
        "parameters_before": report.parameters_before,
        "parameters_hybrid": report.parameters_hybrid,
        "parameters_after": report.parameters_after,
    }


def _hash(*parts: object) -> str:
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
