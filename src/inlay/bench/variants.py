"""Systems with something varied: the ladder from ADM to inlay, the parts of ADM, the gates, and diagnoses."""

from collections.abc import Mapping
from dataclasses import dataclass

from inlay.errors import InlayError

__all__ = ["GROUPS", "Variant", "variants"]


@dataclass(frozen=True)
class Variant:
    """A row of a table of variants.

    Attributes:
        name: Label of its runs.
        tells: What it changes, in words.
        changes: Changes of settings of the system, by dotted path.
        system: The system that is varied.
        datasets: The data sets that it is for; None is for all.
    """

    name: str
    tells: str
    changes: Mapping[str, str]
    system: str = "adm"
    datasets: tuple[str, ...] | None = None


# Each rung of the ladder keeps the changes of those before it.
_RUNGS: tuple[tuple[str, str, Mapping[str, str]], ...] = (
    ("full-covariance", "+ replay from a covariance matrix per class", {"replay.statistics": "full"}),
    ("refit", "+ joint head fitted anew after the merge", {"classifier.refit": "true"}),
    ("drift", "+ statistics of old classes moved along with the features", {"classifier.drift": "true"}),
    (
        "assignment",
        "+ balanced assignment to prototypes instead of the paper's losses on new classes",
        {
            "method": "inlay",
            "assignment.weight": "1",
            "contrastive.weight": "0",
            "self_training.weight": "0",
            "triplet.weight": "0",
            "regularization.weight": "0",
            "replay.weight": "0",
            "classifier.detach": "false",
        },
    ),
    ("strong-view", "+ second view strong", {"second_view": "strong"}),
    ("light-distillation", "+ distillation at the weight of inlay", {"distillation.weight": "0.1"}),
    (
        "schedule",
        "+ schedule of inlay",
        {
            "training.epochs": "16",
            "training.batch": "256",
            "training.schedule": "cosine",
            "training.nesterov": "true",
            "training.weight_decay": "0.0005",
        },
    ),
    (
        "known-metric",
        "+ prototypes in features whitened by the spread within known classes",
        {"assignment.metric": "known"},
    ),
    ("densities", "+ the likeliest Gaussian predicts instead of the joint head", {"classifier.decision": "densities"}),
    (
        "gentle",
        "+ lower learning rate, and old features held the tighter the more old classes there are",
        {"training.learning_rate": "0.03", "distillation.by_classes": "true"},
    ),
    ("neighbours", "+ the second view of a neighbour in half of the pairs", {"assignment.partner_share": "0.5"}),
)


def _ladder() -> tuple[Variant, ...]:
    found, changes = [], dict[str, str]()
    for number, (name, tells, further) in enumerate(_RUNGS, start=1):
        changes = {**changes, **further}
        found.append(Variant(f"ladder-{number}-{name}", tells, changes))
    return tuple(found)


def _without(part: str, name: str, tells: str) -> Variant:
    return Variant(f"ablation-no-{name}", tells, {f"{part}.weight": "0"})


_CIFAR10, _CIFAR100 = ("cifar10",), ("cifar100",)


def _batches(system: str) -> tuple[Variant, ...]:
    """As many novel images a step as FRoST's code leaves of a batch."""
    return tuple(
        Variant(
            f"diagnosis-{system}-batch-{batch}",
            f"{batch} novel images a step, as published, not 128",
            {"training.batch": batch},
            system,
            datasets,
        )
        for batch, datasets in (("64", _CIFAR10), ("26", _CIFAR100))
    )


def _as_published(system: str) -> tuple[Variant, ...]:
    """Batch and rise of consistency as FRoST's code has them, one at a time, in a stage that stays compressed."""
    name = f"diagnosis-{system}"
    return (
        *_batches(system),
        # In fractions of the compressed stage, which has 5,880 steps on CIFAR-10 and 4,740 on CIFAR-100.
        Variant(
            f"{name}-ramp-19550",
            "consistency rises over 19,550 steps, as published, not over 1,470",
            {"consistency.ramp": "3.325"},
            system,
            _CIFAR10,
        ),
        Variant(
            f"{name}-ramp-58650",
            "consistency rises over 58,650 steps, as published, not over 3,555",
            {"consistency.ramp": "12.373"},
            system,
            _CIFAR100,
        ),
    )


def _self_training(weight: str, tells: str, datasets: tuple[str, ...]) -> Variant:
    changes = {"self_training.divide_by_classes": "false", "self_training.weight": weight}
    return Variant(f"diagnosis-adm-self-training-{weight}", tells, changes, "adm", datasets)


# Each tests a likely reason why a figure of the first split is below print. None of them chose a setting.
_DIAGNOSES = (
    *_as_published("frost"),
    _self_training("0.05", "half the weight of self-training, which draws images to new classes", _CIFAR10),
    _self_training("0.02", "twice the weight of self-training, which draws images to new classes", _CIFAR100),
    *_batches("adm"),
    Variant(
        "diagnosis-inlay-distillation-1",
        "old features held ten times as tight",
        {"distillation.weight": "1"},
        "inlay",
        _CIFAR100,
    ),
    Variant(
        "diagnosis-inlay-rate-0.01",
        "a third of the learning rate",
        {"training.learning_rate": "0.01"},
        "inlay",
        _CIFAR100,
    ),
    *_as_published("frost+amm"),
    Variant(
        "diagnosis-ncl-last-group",
        "only the last group of layers is trained, as in NCL's own code",
        {"branch.include": "layer4*"},
        "ncl",
    ),
    Variant("diagnosis-ncl-frozen", "backbone frozen, as printed Old suggests", {"branch.gate": "frozen"}, "ncl"),
    Variant(
        "diagnosis-dtc-decay",
        "learning rate halved four times, as in DTC's own code",
        {"training.decay_at": "0.2,0.4,0.6,0.8", "training.decay_factor": "0.5"},
        "dtc",
        _CIFAR100,
    ),
    *(
        Variant(
            f"diagnosis-autonovel-epochs-{epochs}",
            "four times the steps, in which features move away from the old head",
            {"training.epochs": epochs},
            "autonovel",
            where,
        )
        for epochs, where in (("120", _CIFAR10), ("240", _CIFAR100))
    ),
)

GROUPS: Mapping[str, tuple[Variant, ...]] = {
    "ladder": _ladder(),
    "ablations": (
        _without("contrastive", "contrastive", "no contrastive loss"),
        _without("distillation", "kd", "no distillation"),
        _without("self_training", "self-training", "no self-training of the joint head"),
        _without("triplet", "triplet", "no triplet comparison"),
        _without("regularization", "regularization", "no regularization of the mean prediction"),
        _without("replay", "replay", "no replay of old classes"),
        Variant("ablation-not-detached", "classifier losses reach the backbone", {"classifier.detach": "false"}),
        Variant(
            "ablation-diagonal",
            "replay from variances per class instead of shared ones",
            {"replay.statistics": "diagonal"},
        ),
        Variant("ablation-full-covariance", "replay from a covariance matrix per class", {"replay.statistics": "full"}),
    ),
    "gates": (
        Variant("gate-none", "no branches: full fine-tuning", {"branch.gate": "full"}),
        Variant("gate-aff", "AFF: a gate of the base response, cannot be merged", {"branch.gate": "aff"}),
        Variant("gate-amm-absolute", "AMM that reads the magnitude of γ", {"branch.absolute_gamma": "true"}),
        Variant("gate-constant", "control: each layer's mean of σ(−γ)", {"branch.gate": "amm-mean"}),
        Variant("gate-shuffled", "control: σ(−γ) of another channel of the layer", {"branch.gate": "amm-shuffled"}),
        Variant("gate-frozen", "backbone frozen, only heads are trained", {"branch.gate": "frozen"}),
    ),
    "diagnosis": _DIAGNOSES,
}
"""The variants of each table, by its name."""


def variants(group: str) -> tuple[Variant, ...]:
    """Return the variants of a table.

    Raises:
        InlayError: If there is none of that name.
    """
    if group not in GROUPS:
        raise InlayError(f"There are no variants {group!r}; choose from: {', '.join(GROUPS)}.")
    return GROUPS[group]
