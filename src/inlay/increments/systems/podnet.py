"""PODNet (Douillard et al., ECCV 2020): proxies per class, and pooled maps held close to those before."""

from dataclasses import replace

from torch import Tensor

from inlay.increments.increment import Increment, System
from inlay.increments.outputs import Loss, Outputs
from inlay.increments.pooled_distillation import flat_distillation, growth_factor, pooled_distillation
from inlay.increments.proxy_network import ProxyNetwork
from inlay.increments.recipe import Recipe
from inlay.settings import TrainingSettings

__all__ = ["FAIR", "PUBLISHED"]

_FLAT, _SPATIAL = 1.0, 3.0


def _flat(outputs: Outputs) -> Tensor:
    return flat_distillation(outputs.features, outputs.before[0])


def _spatial(outputs: Outputs) -> Tensor:
    return pooled_distillation(outputs.maps, outputs.before[1])


def _distillation(task: Increment) -> dict[str, tuple[float, Loss]]:
    factor = growth_factor(task.classes, task.new_classes)
    return {"flat": (factor * _FLAT, _flat), "spatial": (factor * _SPATIAL, _spatial)}


_TRAINING = TrainingSettings(epochs=160, nesterov=False, gradient_limit=5.0, warm_up=0.0)
# Without moments of decay the rate stays what it is.
_TUNING = replace(_TRAINING, epochs=20, learning_rate=0.05, schedule="step")

PUBLISHED = System(
    name="podnet",
    summary="PODNet: ten proxies per class, distillation of pooled maps and of features",
    recipe=Recipe(view="weak-bright", base=_TRAINING, stage=_TRAINING, tuning=_TUNING),
    learn=ProxyNetwork(_distillation),
    base="nca of proxies",
)
FAIR = replace(PUBLISHED, recipe=replace(PUBLISHED.recipe, view="weak"))
