"""How well known, new and foreign images are told apart, and what that costs a stage."""

from typing import Any

import numpy as np
import torch
from benchmarks.own_images_cases import Case
from sklearn.datasets import load_sample_images
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from inlay.data import ImageSet
from inlay.discovering import Search, discover_in_pile
from inlay.discovery.triage import NoveltyRule, novelty_scores
from inlay.engine.randomness import generator
from inlay.evaluation.benchmark import match_stage, score_learner
from inlay.knowledge import Knowledge
from inlay.piles import look_again, sort_pile
from inlay.pipeline import learn_stage

__all__ = ["photo_crops", "triage_row"]

_FOREIGN = 100


def triage_row(case: Case, error: float) -> dict[str, Any]:
    """Sort a pile that is half old and half new, and learn a stage from what was sorted.

    The old images are half of the test images, withheld from the base stage; the other half scores the stages.

    Args:
        case: The run.
        error: Share of known images that may be taken for new.
    """
    old, old_test, new = _cut(case)
    old_features, new_features = (case.knowledge.features(part.without_labels()) for part in (old, new))
    features = torch.cat([old_features, new_features])
    is_new = torch.arange(len(features)) >= len(old)
    pile = sort_pile(case.knowledge, features, case.calibration, error)
    pile = look_again(case.knowledge, features, pile, len(new.class_names))
    ours = {"ours": _area(pile.scores, is_new)}
    return {
        "old_images": len(old),
        "new_images": len(new),
        "auroc": ours | {rule: _area(_scores(case, features, rule), is_new) for rule in ("softmax", "energy")},
        "error": error,
        "known_error": float((~pile.known.cpu())[~is_new].double().mean()),
        "new_found": float(pile.new.cpu()[is_new].double().mean()),
        "new_neither": float(pile.neither.cpu()[is_new].double().mean()),
        "foreign": _foreign(case, features, error),
        "stage": _stages(case, old, old_test, new, error),
    }


def photo_crops(count: int, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Cut small pieces at random places out of scikit-learn's two photographs, uint8 [count, channels, H, W]."""
    randomness = np.random.default_rng(seed)
    photos, (channels, height, width), crops = load_sample_images().images, shape, []
    for _ in range(count):
        photo = photos[randomness.integers(len(photos))]
        top, left = (randomness.integers(photo.shape[axis] - side) for axis, side in enumerate((height, width)))
        piece = photo[top : top + height, left : left + width]
        crops.append(piece.mean(axis=2, keepdims=True) if channels == 1 else piece)
    return torch.from_numpy(np.stack(crops).astype(np.uint8)).permute(0, 3, 1, 2).contiguous()


def _cut(case: Case) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Old images for the pile, old images to score with, and as many new images as old ones."""
    old = case.old_test
    order = torch.randperm(len(old), generator=generator(case.seed, "old half"))
    half = len(old) // 2
    new = case.new
    chosen = torch.randperm(len(new), generator=generator(case.seed, "new half"))[:half]
    names = old.class_names
    first, second = (old.select(part).of_classes(names) for part in (order[:half], order[half:]))
    return first, second, new.select(chosen).of_classes(new.class_names)


def _scores(case: Case, features: Tensor, rule: NoveltyRule) -> Tensor:
    head = case.knowledge.head
    assert isinstance(head, nn.Linear)
    return novelty_scores(features, case.knowledge.statistics, head.weight, head.bias, rule)


def _area(scores: Tensor, is_new: Tensor) -> float:
    return float(roc_auc_score(is_new.numpy(), scores.cpu().numpy()))


def _foreign(case: Case, features: Tensor, error: float) -> dict[str, dict[str, float]]:
    """Mix images of another source into the pile and see what becomes of them."""
    shape = case.old_test.images.shape[1:]
    noise = torch.randint(256, (_FOREIGN, *shape), generator=generator(case.seed, "noise"), dtype=torch.uint8)
    sources = {"noise": noise, "photographs": photo_crops(_FOREIGN, (shape[0], shape[1], shape[2]), case.seed)}
    found = {}
    for name, pixels in sources.items():
        images = ImageSet(pixels, tuple(f"{name}#{index}" for index in range(_FOREIGN)))
        pile = sort_pile(
            case.knowledge, torch.cat([features, case.knowledge.features(images)]), case.calibration, error
        )
        parts = {"known": pile.known, "new": pile.new, "neither": pile.neither}
        found[name] = {part: float(mask[len(features) :].double().mean()) for part, mask in parts.items()}
    return found


def _stages(
    case: Case, old: ImageSet, old_test: ImageSet, new: ImageSet, error: float
) -> dict[str, dict[str, float | None] | None]:
    """Learn the pile after sorting, and after an oracle's sorting, with the true number of classes."""
    pile, classes = _joined(old, new), len(new.class_names)
    search = Search(classes=classes, sort=True, error=error)
    sorted_out = discover_in_pile(
        case.knowledge, pile.without_labels(), search, case.settings, case.workshop, case.calibration
    )
    oracle = learn_stage(case.knowledge, new.without_labels(), classes, case.settings, case.workshop)
    new_test = case.stages.test(1).of_classes(new.class_names)
    test = _joined(old_test, new_test)
    return {
        "triage": None if sorted_out is None else _accuracy(sorted_out, pile, test, old.class_names),
        "oracle": _accuracy(oracle, pile, test, old.class_names),
    }


def _accuracy(after: Knowledge, pile: ImageSet, test: ImageSet, old_names: tuple[str, ...]) -> dict[str, float | None]:
    record = after.record
    truth = match_stage(record.index, record.cluster_of(), len(record.class_names), pile, old_names, mixed=True)
    class_stages = [entry.stage for entry in after.registry]
    scores = score_learner(after.logits(test), test, old_names, class_stages, [truth])[0]
    return {"old": scores.old, "new": scores.new, "all": scores.all}


def _joined(first: ImageSet, second: ImageSet) -> ImageSet:
    assert first.labels is not None and second.labels is not None
    labels = torch.cat([first.labels, second.labels + len(first.class_names)])
    names = (*first.class_names, *second.class_names)
    return ImageSet(torch.cat([first.images, second.images]), (*first.names, *second.names), labels, names)
