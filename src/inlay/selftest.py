"""Hiding base classes and finding them again: how well discovery works on these images, before it matters."""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from inlay.calibration import HiddenTrial, believed, missed
from inlay.described import Described
from inlay.discovering import forgetting_of
from inlay.discovery.class_spread import relative_spread
from inlay.discovery.triage import separation
from inlay.engine.randomness import generator
from inlay.knowledge import Knowledge
from inlay.piles import SortedPile, calibrated, count_classes, look_again, sort_pile
from inlay.pipeline import Workshop, learn_base, learn_stage
from inlay.settings import Settings

__all__ = ["FEWEST_FOR_TRIAL", "FEWEST_HELD_OUT", "classes_to_hide", "held_out_images", "hide_and_find"]

# So many calibrate an error of one in twenty.
FEWEST_HELD_OUT = 20
# With so many, one odd image does not put everything below the threshold; a trial mixes a few more into its pile.
_CALIBRATING = 29
FEWEST_FOR_TRIAL = 36
_FEWEST_CLASSES = 4
_HIDDEN_SHARE = 1 / 3


def held_out_images(labels: Tensor, share: float, seed: int) -> Tensor:
    """Choose images to keep out of training: a share of each class, rounded down, and never its last two.

    Args:
        labels: Class of each image, [N].
        share: Share of each class, 0 to below 1.
        seed: Seed of the choice.

    Returns:
        bool [N], on the CPU.
    """
    labels = labels.cpu()
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    randomness = generator(seed, "held-out")
    for label in range(int(labels.max()) + 1):
        members = (labels == label).nonzero().flatten()
        count = max(0, min(int(share * len(members)), len(members) - 2))
        chosen[members[torch.randperm(len(members), generator=randomness)[:count]]] = True
    return chosen


def classes_to_hide(class_names: Sequence[str], seed: int) -> tuple[str, ...]:
    """Choose a third of the classes, at least two; none where fewer than two would be left to know."""
    if len(class_names) < _FEWEST_CLASSES:
        return ()
    count = max(2, round(_HIDDEN_SHARE * len(class_names)))
    order = torch.randperm(len(class_names), generator=generator(seed, "hidden classes")).tolist()
    return tuple(class_names[index] for index in sorted(order[:count]))


def hide_and_find(
    labelled: Described,
    held_out: Tensor,
    hidden: Sequence[str],
    backbone: str | nn.Module,
    settings: Settings,
    seed: int,
    workshop: Workshop,
    error: float,
) -> HiddenTrial:
    """Learn all but the hidden classes, then find the hidden ones among held-out images of the others.

    The network of the trial is thrown away.

    Args:
        labelled: Labelled images of all classes, described where the network is not trained.
        held_out: Images that are kept out of training, bool [N]; of the classes that are not hidden a half of them
            calibrates, more where that would be too few, and the others are mixed into the pile.
        hidden: Names of the classes to hide.
        backbone: Name of a backbone, or a module, as for the base stage.
        settings: Settings of the run.
        seed: Seed of the trial.
        workshop: Where it is computed; its checkpoint is not used.
        error: Share of known images that may be taken for new.

    Raises:
        InlayError: If there are too few images, or training is stopped or diverges.
    """
    workshop = dataclasses.replace(workshop, checkpoint=None, label=f"{workshop.label}hidden classes: ")
    names = labelled.images.class_names
    visible = [name for name in names if name not in hidden]
    is_hidden = torch.tensor([name in hidden for name in names])[labelled.labels.cpu()]
    trained = labelled.select(~is_hidden & ~held_out).of_classes(visible)
    known = learn_base(trained.images, backbone, settings, seed, workshop, features=trained.features)
    spare = _shuffled(~is_hidden & held_out, generator(seed, "spare"))
    spared = labelled.select(spare).of_classes(visible)
    own, half = spared.by(known), max(_CALIBRATING, len(spare) // 2)
    calibration = calibrated(known, own[:half], spared.labels[:half], error)
    known = known.referring_to(own[:half], spared.labels[:half])
    places = torch.cat([(is_hidden & ~held_out).nonzero().flatten(), spare[half:]])
    searched, is_new = labelled.select(places), is_hidden[places]
    found = searched.by(known)
    pile = sort_pile(known, found, calibration, error)
    alone = _counted(known, found[is_new.to(found.device)], len(hidden), seed)
    in_pile, classes = _counted_in_pile(known, found[_taken(pile, is_new, len(hidden))], len(hidden), seed)
    pile = look_again(known, found, pile, classes)
    taken = _taken(pile, is_new, len(hidden))
    images = searched.images.select(taken.cpu()).without_labels()
    after = learn_stage(known, images, min(classes, len(images) - 1), settings, workshop, features=found[taken])
    scores, unmoved = pile.scores.cpu(), after.settings.branch.gate == "frozen"
    return HiddenTrial(
        hidden=tuple(hidden),
        estimate=alone.estimate,
        auroc=separation(scores[~is_new], scores[is_new]),
        known_error=float((~pile.known.cpu())[~is_new].double().mean()),
        new_found=float(pile.new.cpu()[is_new].double().mean()),
        estimated_drop=forgetting_of(known, after).drop,
        true_drop=_accuracy(known, spared) - _accuracy(after, spared if unmoved else Described(spared.images)),
        spread=alone.spread,
        sorted_estimate=None if in_pile is None else in_pile.estimate,
        sorted_spread=None if in_pile is None else in_pile.spread,
    )


def _shuffled(chosen: Tensor, randomness: torch.Generator) -> Tensor:
    """Return the places of the chosen ones, bool [N], in random order."""
    places = chosen.nonzero().flatten()
    return places[torch.randperm(len(places), generator=randomness)]


def _taken(pile: SortedPile, is_new: Tensor, hidden: int) -> Tensor:
    """Return the images found, bool [N]; the hidden ones where too few were, so that the other figures exist."""
    return pile.new if int(pile.new.sum()) > hidden else is_new.to(pile.new.device)


class _Counted(NamedTuple):
    """Number of classes that are counted, and how much looser than expected as many as there are turned out."""

    estimate: int
    spread: float


def _counted(known: Knowledge, features: Tensor, classes: int, seed: int) -> _Counted:
    """Measure how loose a known number of classes is, and count them as a stage would that has learned this."""
    spread = relative_spread(features, known.statistics, classes, generator(seed, "spread", device=features.device))
    return _Counted(count_classes(known, features, seed, believed([(classes, spread)])).estimate, spread)


def _counted_in_pile(known: Knowledge, features: Tensor, classes: int, seed: int) -> tuple[_Counted | None, int]:
    """Count what sorting took for new, of a known number of classes, and say with what number a stage would go on.

    Where the network stays as it is, sorting finds a part of what is new, and how much it finds is told by itself.
    """
    if known.settings.leaves_network:
        return None, count_classes(known, features, seed).estimate
    counted = _counted(known, features, classes, seed)
    factor = believed([(classes, missed(classes, counted.estimate))])
    return counted, max(1, round(counted.estimate * factor))


def _accuracy(knowledge: Knowledge, images: Described) -> float:
    predicted = knowledge.scores(images.by(knowledge)).argmax(dim=1).cpu()
    return float((predicted == images.labels.cpu()).double().mean())
