"""AFC (Kang, Park and Han, CVPR 2022): PODNet with maps held close by the importance of their channels.

In the published code importances are measured in train mode after the head is tuned, which leaves batch norms with the
statistics of the images of the stage, of which many are of new classes; that network is scored, and chooses the images
to keep. `PUBLISHED` does so too. In `FAIR` importances are measured in eval mode and leave the network as it is, with
the statistics of equally many images of each class, as in PODNet.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor

from inlay.increments.classifier import Classifier
from inlay.increments.importance import weighted_discrepancy
from inlay.increments.importance_pass import follow_stage, measured_importance
from inlay.increments.increment import Increment, Learned, System, Train
from inlay.increments.outputs import Loss, Outputs
from inlay.increments.pooled_distillation import growth_factor
from inlay.increments.proxy_network import ProxyNetwork, layer_groups, nca
from inlay.increments.systems import podnet

__all__ = ["FAIR", "PUBLISHED"]

_WEIGHT = 4.0


def _name(group: str) -> str:
    return f"importance.{group}"


def _importance(task: Increment, classifier: Classifier, *, training: bool) -> dict[str, Tensor]:
    found = measured_importance(task, classifier, layer_groups(classifier.network), nca, training=training)
    return {_name(group): values for group, values in found.items()}


def _distillation(task: Increment) -> dict[str, tuple[float, Loss]]:
    importance = [task.extras[_name(group)].to(task.device) for group in layer_groups(task.start.network)]

    def discrepancy(outputs: Outputs) -> Tensor:
        return weighted_discrepancy(outputs.maps, outputs.before[1], importance)

    return {"discrepancy": (_WEIGHT * growth_factor(task.classes, task.new_classes), discrepancy)}


_LEARN = ProxyNetwork(_distillation)


def _learn_and_follow(task: Increment, train: Train) -> Learned:
    learned = _LEARN(task, train)
    # After the base stage the statistics are those of its images already, and PODNet shares it.
    if task.index:
        follow_stage(task, learned.classifier.network)
    return learned


PUBLISHED = replace(
    podnet.PUBLISHED,
    name="afc",
    summary="AFC: PODNet's proxies, distillation of maps weighed by the importance of their channels",
    learn=_learn_and_follow,
    describe=partial(_importance, training=True),
)
FAIR: System = replace(
    PUBLISHED, recipe=podnet.FAIR.recipe, learn=_LEARN, describe=partial(_importance, training=False)
)
