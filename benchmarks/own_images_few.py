"""Whether a few new images among many known ones are noticed."""

from typing import Any

import torch
from benchmarks.own_images_cases import Case

from inlay.engine.randomness import generator
from inlay.piles import sort_pile

__all__ = ["SHARES", "few_rows"]

SHARES = (0.02, 0.05, 0.1)
_CLASSES = 2


def few_rows(case: Case, error: float) -> list[dict[str, Any]]:
    """Sort piles of all test images of known classes and a few of two new ones.

    Args:
        case: The run.
        error: Share of known images that may be taken for new.

    Returns:
        For each of `SHARES`, which new images have in the pile: whether anything new is noticed, with images compared
        with each other where the network allows it, and judged one by one; and how the images are sorted.
    """
    new = case.new.of_classes(case.new.class_names[:_CLASSES])
    old_features, new_features = (case.knowledge.features(part.without_labels()) for part in (case.old_test, new))
    order = torch.randperm(len(new), generator=generator(case.seed, "few new images"))
    rows = []
    for share in SHARES:
        count = round(len(old_features) * share / (1 - share))
        features = torch.cat([old_features, new_features[order[:count].to(new_features.device)]])
        is_new = torch.arange(len(features)) >= len(old_features)
        pile = sort_pile(case.knowledge, features, case.calibration, error)
        rows.append(
            {
                "share": share,
                "old_images": len(old_features),
                "new_images": int(is_new.sum()),
                "noticed": pile.has_new,
                "noticed_alone": pile.share.low > 0,
                "new_found": float(pile.new.cpu()[is_new].double().mean()),
                "known_error": float((~pile.known.cpu())[~is_new].double().mean()),
            }
        )
    return rows
