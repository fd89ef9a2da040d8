"""Settings of each part of a run.

Where the paper leaves a choice open or contradicts itself, the choice is a field here.
"""

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "AssignmentSettings",
    "BaseSettings",
    "BranchSettings",
    "ClassifierSettings",
    "ContrastiveSettings",
    "DistillationSettings",
    "RegularizationSettings",
    "ReplaySettings",
    "SelfTrainingSettings",
    "TrainingSettings",
    "TripletSettings",
]

_POSITIVE = {"positive": True}


@dataclass(frozen=True)
class TrainingSettings:
    """How weights are trained, in the base stage and in discovery stages.

    Attributes:
        epochs: Passes over the images.
        batch: Images per step at most; an epoch is cut into equal batches.
        optimizer: "sgd", "adam" or "adamw".
        learning_rate: Peak learning rate.
        momentum: Momentum of SGD.
        nesterov: Nesterov's form of the momentum of SGD.
        weight_decay: Weight decay.
        gradient_limit: Every entry of a gradient is cut off at plus and minus this; 0 cuts nothing.
        schedule: "cosine" down to 0, or "step".
        warm_up: With "cosine": fraction of the training over which the learning rate rises first.
        decay_at: With "step": fractions of the training at which the learning rate falls.
        decay_factor: With "step": what it falls by.
        precision: "float32", "bfloat16" for the passes through the network, or "auto": bfloat16 where it pays, on a
            GPU and for images of 28 pixels and up on a CPU that has it in hardware.
        pace: How steps are taken: "eager"; "graph": recorded once as a CUDA graph and replayed; "compile": compiled,
            and on a GPU recorded too; "auto": eager on the CPU and with several processes, otherwise recorded, and
            compiled from 5,000 steps or 1.5 million images.
    """

    epochs: int = 60
    batch: int = field(default=128, metadata={"minimum": 2})
    optimizer: Literal["sgd", "adam", "adamw"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    gradient_limit: float = 0.0
    schedule: Literal["cosine", "step"] = "cosine"
    warm_up: float = field(default=0.1, metadata={"maximum": 0.9})
    decay_at: tuple[float, ...] = ()
    decay_factor: float = 0.1
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    pace: Literal["auto", "eager", "graph", "compile"] = "auto"


@dataclass(frozen=True)
class BaseSettings:
    """The labelled base stage.

    Attributes:
        training: Schedule and optimiser.
        view: Augmentation of the images for the cross-entropy.
        cross_entropy: Weight of the cross-entropy.
        contrastive: Weight of a self-supervised contrastive term on two strong views; 0 leaves it out.
        contrastive_view: Augmentation of those two views.
        temperature: Temperature of that term.
        projection: Output size of its projection head.
        rotation: Weight of a term that tells class and quarter turn together, on turned images; 0 leaves it out.
    """

    training: TrainingSettings = field(default_factory=TrainingSettings)
    view: str = "weak"
    cross_entropy: float = 1.0
    contrastive: float = 1.0
    contrastive_view: str = "strong"
    temperature: float = field(default=0.5, metadata=_POSITIVE)
    projection: int = field(default=128, metadata=_POSITIVE)
    rotation: float = 0.0


@dataclass(frozen=True)
class BranchSettings:
    """What is trained in a discovery stage.

    Attributes:
        gate: "imm", "aff", "amm" or any other registered gate: a branch beside every chosen layer; "constant": a
            branch behind a fixed gate; "amm-mean", "amm-shuffled": controls of amm; "full": the network itself,
            without branches; "twin": the network itself with a second last group beside the first (ResTune);
            "frozen": only the heads.
        absolute_gamma: The gate of AMM reads |gamma| instead of gamma (its argument is about magnitude).
        constant: Value of the constant gate.
        include: Glob patterns of the layers that get a branch, such as "layer2*", or with "full" are trained; empty
            means all (of the kinds).
        kinds: Kinds of layer that get a branch: some of "conv-bn", "linear-bn", "mlp", "conv", "linear", or "all";
            empty means those that a norm can gate, the first three.
        kernel: "same" size as the layer (the paper), or "1x1" at its centre.
        batch_norm: Whether the branch of a layer with batch norm has one of its own (the paper).
    """

    gate: str = "amm"
    absolute_gamma: bool = False
    constant: float = 0.5
    include: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    kernel: Literal["same", "1x1"] = "same"
    batch_norm: bool = True


@dataclass(frozen=True)
class ContrastiveSettings:
    """Contrastive representation learning on the unlabelled images (Eq. 1).

    Attributes:
        weight: Weight in the total loss.
        temperature: tau_u; the paper gives none.
        form: "standard" keeps the positive pair in the denominator, over 2B views; "literal" is Eq. 1 as
            printed.
        projection: Output size of the projection head, which is discarded after the stage.
    """

    weight: float = 0.0
    temperature: float = field(default=0.5, metadata=_POSITIVE)
    form: Literal["standard", "literal"] = "standard"
    projection: int = field(default=128, metadata=_POSITIVE)


@dataclass(frozen=True)
class DistillationSettings:
    """Distillation of the features of the frozen network (Eq. 2, with the sign that keeps features close).

    Attributes:
        weight: Weight in the total loss.
        by_classes: Multiply by the number of known classes for each new one: the more there is to keep, the tighter it
            is held.
        form: "batch" compares whole normalised batches, "sample" normalised rows, "raw" rows, "squared"
            squared distances of normalised rows.
    """

    weight: float = 0.0
    by_classes: bool = False
    form: Literal["batch", "sample", "raw", "squared"] = "batch"


@dataclass(frozen=True)
class SelfTrainingSettings:
    """Self-training of the joint head on the labels of the novel head (Eq. 3).

    Attributes:
        weight: Weight once ramped up.
        ramp: Fraction of the stage over which the weight rises.
        divide_by_classes: Divide by the number of classes, as printed.
    """

    weight: float = 0.0
    ramp: float = 0.25
    divide_by_classes: bool = False


@dataclass(frozen=True)
class TripletSettings:
    """Triplet comparison of novel probabilities (Eq. 4, as a hinge).

    Attributes:
        weight: Weight in the total loss.
        margin: Margin m of the hinge.
        mining: Features by which neighbours are chosen: "hybrid" (current) or "frozen" (stable).
        other_view: View from which positives and negatives are taken.
        divide_by: Classes in the factor 1/C: "novel" (those in the softmax), "all" (as printed) or "none" (no factor:
            the margin of 1 then bounds the comparison).
    """

    weight: float = 0.0
    margin: float = 1.0
    mining: Literal["hybrid", "frozen"] = "hybrid"
    other_view: Literal["first", "second"] = "first"
    divide_by: Literal["novel", "all", "none"] = "novel"


@dataclass(frozen=True)
class RegularizationSettings:
    """Regularization of the mean novel probability (Eq. 5, with the sign that prevents collapse).

    Attributes:
        weight: Weight in the total loss.
    """

    weight: float = 0.0


@dataclass(frozen=True)
class ReplaySettings:
    """Gaussian replay of the features of old classes (Eq. 6).

    Attributes:
        weight: Weight of the replay loss during training; 0 leaves it out (the refit replays all the same).
        per_class: Samples of each class per step.
        statistics: "shared": one standard deviation for all classes; "diagonal": one per class; "pooled": one per class
            and correlations for all classes together; "full": a covariance matrix per class.
        scale: Factor on the standard deviations.
    """

    weight: float = 0.0
    per_class: int = field(default=20, metadata=_POSITIVE)
    statistics: Literal["shared", "diagonal", "pooled", "full"] = "full"
    scale: float = 1.15


@dataclass(frozen=True)
class AssignmentSettings:
    """Clustering by cosine prototypes that start from k-means; not part of the paper.

    Attributes:
        weight: Weight of the balanced assignments swapped between the two views.
        information: Weight of the mutual information between the assignments of the two views.
        temperature: Temperature of the prototype softmax.
        epsilon: Softness of the balanced assignment.
        targets: Whose assignments are predicted: those of "both" views, each by the other, or those of the "first"
            by the second.
        metric: Features that prototypes are compared with: "plain", or "known": whitened by the spread within the
            classes known so far, in the leading directions.
        directions: With "known": directions kept for each new class.
        metric_floor: With "known": part of the mean variance that counts as spread within classes in every direction;
            the fewer images there are for each feature, the more.
        neighbours: Each image may be paired with one of this many nearest images instead of itself.
        partner_share: Share of pairs that are neighbours.
        balanced: Share the images out evenly among the new classes when the stage ends, too; only where they are
            known to be about equally many.
    """

    weight: float = 0.0
    information: float = 0.0
    temperature: float = field(default=0.1, metadata=_POSITIVE)
    epsilon: float = field(default=0.05, metadata=_POSITIVE)
    targets: Literal["both", "first"] = "both"
    metric: Literal["plain", "known"] = "plain"
    directions: int = field(default=3, metadata=_POSITIVE)
    metric_floor: float = field(default=0.03, metadata=_POSITIVE)
    neighbours: int = field(default=5, metadata=_POSITIVE)
    partner_share: float = field(default=0.0, metadata={"maximum": 1})
    balanced: bool = False


@dataclass(frozen=True)
class ClassifierSettings:
    """Heads, and what happens to them after the merge.

    Attributes:
        detach: Keep the classifier losses of Eqs. 3 to 5 off the backbone (the paper's "decoupled").
        heads: "two": a novel head beside the joint head; "one": the novel outputs of the joint head play its
            part.
        refit: Fit the joint head anew after the merge, on replayed old and assigned new features.
        refit_new: New classes in the refit: "samples" from their statistics, like the old classes, so that the
            head cannot tell them by being real; "features": the features themselves.
        refit_per_class: Samples of each class for the refit; several times the number of features, as the head would
            learn what is by chance in fewer.
        refit_samples: Samples of all classes together at most, shared evenly, so that the cost of the refit grows with
            the number of classes and not with its square.
        refit_decay: Weight decay of the refit.
        drift: Move the statistics of old classes by a ridge map fitted on the unlabelled images.
        drift_residual: Add what the map leaves unexplained to the spread of the moved classes.
        ridge: Strength of that ridge, relative to the mean variance.
        decision: What predicts after a discovery stage: the "linear" joint head, or "densities": the Gaussian under
            which a feature is most likely, from the statistics of the classes, which must be full or pooled.
        density_prior: With "densities": images per dimension for which the covariance of all classes together counts
            beside that of a class.
        density_floor: Part of the mean variance that is added in every direction.
        density_rank: Directions kept of what a class does not share.
        density_counts: With "densities": allow for the mean of a class being the less certain the fewer images it has.
        advised: With "densities", where stages leave the network as it is: keep the head of the base stage, which has
            a say in which of its classes it is.
    """

    detach: bool = False
    heads: Literal["two", "one"] = "two"
    refit: bool = True
    refit_new: Literal["samples", "features"] = "samples"
    refit_per_class: int = field(default=3000, metadata=_POSITIVE)
    refit_samples: int = field(default=200_000, metadata=_POSITIVE)
    refit_decay: float = 1e-4
    drift: bool = True
    drift_residual: bool = True
    ridge: float = field(default=1e-2, metadata=_POSITIVE)
    decision: Literal["linear", "densities"] = "linear"
    density_prior: float = field(default=4.0, metadata=_POSITIVE)
    density_floor: float = field(default=0.05, metadata=_POSITIVE)
    density_rank: int = field(default=64, metadata=_POSITIVE)
    density_counts: bool = False
    advised: bool = False
