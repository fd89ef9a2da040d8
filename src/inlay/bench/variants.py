"""Systems with something varied: the ladder from ADM to inlay, the parts of ADM, and the gates."""

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
    """

    name: str
    tells: str
    changes: Mapping[str, str]
    system: str = "adm"


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
)


def _ladder() -> tuple[Variant, ...]:
    found, changes = [], dict[str, str]()
    for number, (name, tells, further) in enumerate(_RUNGS, start=1):
        changes = {**changes, **further}
        found.append(Variant(f"ladder-{number}-{name}", tells, changes))
    return tuple(found)


def _without(part: str, name: str, tells: str) -> Variant:
    return Variant(f"ablation-no-{name}", tells, {f"{part}.weight": "0"})


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
