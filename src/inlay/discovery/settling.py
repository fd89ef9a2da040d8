"""Images and the Gaussians of new classes, fitted to one another in turn."""

import torch
from torch import Tensor

from inlay.discovery.density import density_head, needed_floor, shared_part
from inlay.discovery.statistics import StatisticsKind, class_statistics

__all__ = ["settled_assignments"]

_FEWEST_MEMBERS = 2


@torch.no_grad()
def settled_assignments(
    features: Tensor,
    assignments: Tensor,
    classes: int,
    rounds: int,
    kind: StatisticsKind = "full",
    prior: float = 4.0,
    floor: float = 0.05,
    rank: int = 64,
) -> Tensor:
    """Give each image to the class under whose Gaussian it is most likely, measure the classes anew, and so on.

    Prototypes ask for the direction of features alone; Gaussians know how far a class spreads, and in which directions.
    It ends early when no image changes its class, or before a class would lose all images but one.

    Args:
        features: Features of the images, [N, D].
        assignments: Their classes to begin with, [N], in 0..K-1.
        classes: K.
        rounds: Rounds at most; 0 changes nothing.
        kind: What is known of the spread of each class.
        prior: See `shared_part`.
        floor: See `needed_floor`.
        rank: See `density_head`.

    Returns:
        Their classes, [N].
    """
    present = torch.bincount(assignments, minlength=classes) > 0
    for _ in range(rounds):
        known = class_statistics(features, assignments, classes, kind, allow_empty=True)
        likeliest = density_head(known, shared_part(known, prior), needed_floor(known, floor), rank)
        found = likeliest(features).argmax(dim=1)
        sizes = torch.bincount(found, minlength=classes)
        if torch.equal(found, assignments) or bool((sizes[present] < _FEWEST_MEMBERS).any()):
            break
        assignments = found
    return assignments
