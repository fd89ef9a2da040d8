"""Everything a learner knows after a stage, and how it is written down."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from inlay import backbones, branches
from inlay.backbones.twin import TwinNetwork
from inlay.data.images import Images
from inlay.data.normalisation import Normalisation
from inlay.discovery.advised import AdvisedDensities
from inlay.discovery.density import DensityHead
from inlay.discovery.statistics import ClassStatistics
from inlay.engine.feed import feed_of
from inlay.engine.inference import features_of
from inlay.errors import InlayError
from inlay.heads import ConcatenatedHead, describe_head, rebuild_head
from inlay.held_out import HeldOut
from inlay.registry import ClassRegistry
from inlay.sealed import making_sense_of
from inlay.settings import Settings

__all__ = ["InputForm", "Knowledge", "StageRecord"]

_MOST_VALUES = 2**27
# Features that are scored at a time; densities need as many numbers for each as there are directions of all classes.
_CHUNK = 4096


@dataclass(frozen=True)
class InputForm:
    """What images the network takes.

    Attributes:
        size: Height and width.
        channels: 1 or 3.
        mean: Mean of each channel, images in 0..1.
        std: Standard deviation of each channel.
    """

    size: tuple[int, int]
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        shape = (self.channels, *self.size)
        if len(shape) != 3 or not all(type(number) is int and number > 0 for number in shape):
            raise ValueError(f"images cannot have {self.channels!r} channels of {self.size!r} pixels")
        if math.prod(shape) > _MOST_VALUES:
            raise ValueError(f"images of {self.size!r} pixels are too large")

    def prepare(self, images: Tensor) -> Tensor:
        """Turn uint8 images [N, C, H, W] into the input of the network."""
        return self.normalise(images.float() / 255)

    @property
    def normalise(self) -> Normalisation:
        """The normalisation of images in 0..1."""
        return Normalisation(self.mean, self.std)

    def example(self) -> Tensor:
        """Return a small input of the right shape, for finding out the structure of a network."""
        return torch.zeros(2, self.channels, *self.size)


@dataclass(frozen=True)
class StageRecord:
    """What happened in one stage.

    Attributes:
        index: 0 for the base stage.
        kind: "base"; "novel" for classes that were discovered; "labelled" for new ones that came with labels.
        class_names: Names of its classes when the stage ended.
        images: Number of images.
        seconds: Time it took.
        fingerprints: Fingerprint of each image of a later stage.
        clusters: New class of each image of a later stage, found or given, counted from 0.
        merge: `max_abs_diff` and parameter counts of the merge; None if there was none.
        identity: Hash of everything that decided the outcome: images, settings, seed and place in the run.
        found: What was found out about the images before and after the stage: which are known, new or neither, the
            estimated number of classes, the estimated forgetting; None if nothing was asked.
        source: Absolute path of what the images were read from; "" if it had none.
    """

    index: int
    kind: str
    class_names: tuple[str, ...]
    images: int
    seconds: float
    fingerprints: tuple[str, ...] = ()
    clusters: tuple[int, ...] = ()
    merge: Mapping[str, float | int] | None = None
    identity: str = ""
    found: Mapping[str, Any] | None = None
    source: str = ""

    def cluster_of(self) -> dict[str, int]:
        """Return the new class of each image of a discovery stage by fingerprint."""
        return dict(zip(self.fingerprints, self.clusters, strict=True))

    @classmethod
    @making_sense_of("stage")
    def from_json(cls, data: Mapping[str, Any]) -> "StageRecord":
        """Rebuild a record from what `dataclasses.asdict` gave."""
        return cls(**_with_tuples(data))


@dataclass(frozen=True, eq=False)
class Knowledge:
    """A classifier between two stages.

    Attributes:
        network: Network from images to features [B, D], frozen and in eval mode: as it was trained, with its batch
            norms, until a stage folds it; merged after a stage with branches, or a hybrid where they do not merge.
        head: Head over all classes: the joint head, or old and novel head side by side where a method has none.
        statistics: Statistics of the features of all classes.
        registry: The classes.
        form: What images the network takes.
        backbone: Name of the backbone; None for a module of the user's.
        settings: Settings under which the latest stage ran.
        seed: Seed of the run.
        record: The latest stage.
        architecture: What builds the backbone again besides its name; None if the name is enough.
        densities: Gaussians of the classes, which predict in place of the head; None if the head does.
        reference: Features of images of base classes that were kept out of training, moved with those of the images of
            stages that have trained the network since; None if there are none.
        base_head: Head of the base stage, whose advice densities take; None if they take none.
    """

    network: nn.Module
    head: nn.Linear | ConcatenatedHead
    statistics: ClassStatistics
    registry: ClassRegistry
    form: InputForm
    backbone: str | None
    settings: Settings
    seed: int
    record: StageRecord
    architecture: Mapping[str, Any] | None = None
    densities: DensityHead | None = None
    reference: HeldOut | None = None
    base_head: nn.Linear | None = None

    @cached_property
    def classifier(self) -> nn.Module:
        """What turns features [B, D] into the scores of all classes, [B, C]."""
        if self.densities is None:
            return self.head
        advised = torch.tensor([id in self._as_trained for id in range(len(self.densities.means))], device=self.device)
        if self.base_head is None or not bool(advised.any()):
            return self.densities
        return AdvisedDensities(self.densities, self.base_head, advised)

    @property
    def _as_trained(self) -> set[int]:
        """Classes of the base stage that have taken no other class in since."""
        base = {entry.id for entry in self.registry.of_stage(0)}
        return base - {self.registry.resolve(entry.id) for entry in self.registry.retired()}

    @torch.no_grad()
    def logits(self, images: Images) -> Tensor:
        """Return the scores of all classes, [N, C], for images of the right form, on the CPU."""
        return self.scores(self.features(images)).cpu()

    @torch.no_grad()
    def scores(self, features: Tensor) -> Tensor:
        """Return the scores of all classes, [N, C], for features [N, D], on their device."""
        return torch.cat([self.classifier(chunk) for chunk in torch.split(features, _CHUNK)])

    def referring_to(self, features: Tensor, labels: Tensor) -> "Knowledge":
        """Return the same with features of images that were kept out of training, [n, D], and their classes, [n]."""
        return replace(self, reference=HeldOut.drawn(features, labels, self.seed))

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return next(self.head.parameters()).device

    @torch.no_grad()
    def features(self, images: Images, report: Callable[[int, int], None] | None = None) -> Tensor:
        """Return the features of images of the right form, [N, D], on the device of the network.

        Args:
            images: The images.
            report: Told how far it is, as by `inlay.engine.progress.counting`; None tells nobody.
        """
        return features_of(self._folded, feed_of(images.pixels, self.device), self.form.prepare, report)

    @cached_property
    def _folded(self) -> nn.Module:
        """The network without batch norms, which is faster; branches that stay are left as they are."""
        if branches.is_hybrid(self.network):
            return self.network
        return branches.fold(self.network, self.form.example().to(self.device))

    def to_files(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything as tensors and JSON-ready facts."""
        tensors = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        tensors |= {f"head.{name}": tensor for name, tensor in self.head.state_dict().items()}
        tensors |= {f"statistics.{name}": tensor for name, tensor in self.statistics.tensors().items()}
        if self.densities is not None:
            tensors |= {f"densities.{name}": tensor for name, tensor in self.densities.state_dict().items()}
        if self.reference is not None:
            tensors |= {f"reference.{name}": tensor for name, tensor in self.reference.tensors().items()}
        if self.base_head is not None:
            tensors |= {f"base_head.{name}": tensor for name, tensor in self.base_head.state_dict().items()}
        facts = {
            "backbone": self.backbone,
            "architecture": self.architecture,
            "structure": branches.describe(self.network),
            "twin": isinstance(self.network, TwinNetwork),
            "head": describe_head(self.head),
            "input": asdict(self.form),
            "classes": self.registry.to_json(),
            "settings": self.settings.to_json(),
            "seed": self.seed,
            "stage": asdict(self.record),
        }
        return {name: tensor.cpu() for name, tensor in tensors.items()}, facts

    @classmethod
    @making_sense_of("stage")
    def from_files(
        cls,
        tensors: Mapping[str, Tensor],
        facts: Mapping[str, Any],
        device: torch.device,
        backbone: nn.Module | None = None,
    ) -> "Knowledge":
        """Rebuild knowledge from what `to_files` returned.

        Args:
            tensors: The tensors.
            facts: The facts.
            device: Where to put it.
            backbone: The user's own module, if the run was made with one.

        Raises:
            InlayError: If the user's module is missing or does not fit.
        """
        form = InputForm(**_with_tuples(facts["input"]))
        if backbone is None:
            if facts["backbone"] is None:
                raise InlayError(
                    "This run was made with a backbone of your own; pass it: inlay.load(run, backbone=module)."
                )
            backbone = backbones.skeleton(facts["backbone"], form.channels, facts.get("architecture"))
        plain = copy.deepcopy(backbone).cpu()
        if facts.get("twin", False):
            plain = TwinNetwork(plain, torch.Generator())
        network = branches.rebuild(plain, facts["structure"], form.example())
        _load(network, tensors, "network.")
        network.requires_grad_(False).eval().to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        head = rebuild_head(facts.get("head", {"kind": "linear"}), _under(tensors, "head."))
        assert isinstance(head, nn.Linear | ConcatenatedHead)
        statistics = ClassStatistics.from_tensors(_under(tensors, "statistics."))
        densities = _under(tensors, "densities.")
        held_out = _under(tensors, "reference.")
        reference = HeldOut.from_tensors(held_out, statistics.mean.shape[1], len(statistics)) if held_out else None
        base_head = _under(tensors, "base_head.")
        registry = ClassRegistry.from_json(facts["classes"])
        base_size = (len(registry.of_stage(0)), statistics.mean.shape[1])
        return cls(
            network=network,
            head=head.requires_grad_(False).to(device),
            statistics=statistics.to(device),
            registry=registry,
            form=form,
            backbone=facts["backbone"],
            settings=Settings.from_json(facts["settings"]),
            seed=facts["seed"],
            record=StageRecord.from_json(facts["stage"]),
            architecture=facts.get("architecture"),
            densities=DensityHead.from_tensors(densities).to(device) if densities else None,
            reference=None if reference is None else reference.to(device),
            base_head=_base_head(base_head, base_size).to(device) if base_head else None,
        )


def _with_tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has no tuples: turn its lists back into them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _base_head(tensors: Mapping[str, Tensor], size: tuple[int, int]) -> nn.Linear:
    head = rebuild_head({"kind": "linear"}, tensors)
    if not isinstance(head, nn.Linear) or head.weight.shape != size:
        raise ValueError(f"the head of the base stage must have {size[0]} classes and {size[1]} features")
    return head.requires_grad_(False)


def _load(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str) -> None:
    try:
        module.load_state_dict(_under(tensors, prefix))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InlayError(f"The saved weights do not fit this backbone; give the one of the run ({reason}).") from error
