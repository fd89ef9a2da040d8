"""AFC (Kang, Park and Han, CVPR 2022): PODNet with maps held close by the importance of their channels.

Importances are measured in eval mode and leave the network as it is. In the published code they are measured in train
mode, which leaves batch norms with the statistics of the stage's images, of which most are of new classes.
"""

from dataclasses import replace

from torch import Tensor

from inlay.increments.classifier import Classifier
from inlay.increments.importance import weighted_discrepancy
from inlay.increments.importance_pass import measured_importance
from inlay.increments.increment import Increment, System
from inlay.increments.outputs import Loss, Outputs
from inlay.increments.pooled_distillation import growth_factor
from inlay.increments.proxy_network import ProxyNetwork, layer_groups, nca
from inlay.increments.systems import podnet

__all__ = ["FAIR", "PUBLISHED"]

_WEIGHT = 4.0


def _name(group: str) -> str:
    return f"importance.{group}"


def _importance(task: Increment, classifier: Classifier) -> dict[str, Tensor]:
    found = measured_importance(task, classifier, layer_groups(classifier.network), nca)
    return {_name(group): values for group, values in found.items()}


def _distillation(task: Increment) -> dict[str, tuple[float, Loss]]:
    importance = [task.extras[_name(group)].to(task.device) for group in layer_groups(task.start.network)]

    def discrepancy(outputs: Outputs) -> Tensor:
        return weighted_discrepancy(outputs.maps, outputs.before[1], importance)

    return {"discrepancy": (_WEIGHT * growth_factor(task.classes, task.new_classes), discrepancy)}


PUBLISHED = replace(
    podnet.PUBLISHED,
    name="afc",
    summary="AFC: PODNet's proxies, distillation of maps weighed by the importance of their channels",
    learn=ProxyNetwork(_distillation),
    describe=_importance,
)
FAIR: System = replace(PUBLISHED, recipe=podnet.FAIR.recipe)
