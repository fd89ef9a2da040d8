"""Systems with several proxies per class that hold maps of the network close to those before: PODNet and AFC."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from inlay.engine.randomness import generator
from inlay.errors import InlayError
from inlay.increments.increment import Increment, Learned, Train
from inlay.increments.outputs import Loss, Outputs
from inlay.increments.proxy_head import ProxyHead, nca_loss, proxies_from_features, proxy_similarity, random_proxies
from inlay.increments.single import SingleNetwork

__all__ = ["ProxyNetwork", "layer_groups", "nca", "nca_of_proxies", "proxy_head"]

_PROXIES_PER_CLASS = 10

Losses = Mapping[str, tuple[float, Loss]]


@dataclass(frozen=True)
class ProxyNetwork:
    """Learns a stage by neighbourhood component analysis on proxies, later ones with a distillation beside it.

    The base stage has no distillation. Later stages train the proxies of new classes and the scale with the network,
    then all proxies, and nothing else, on equally many images of each class.

    Attributes:
        distillation: Weight and loss by name in a later stage; `Outputs.maps` are those of `layer_groups`.
    """

    distillation: Callable[[Increment], Losses]

    def __call__(self, task: Increment, train: Train) -> Learned:
        """Learn a stage.

        Raises:
            InlayError: If the network has no groups whose maps could be compared.
        """
        # In the base stage too, so that an unfit network is refused before it is trained.
        groups = layer_groups(task.opened() if task.before is None else task.before.network)
        tuning: Losses = {"nca": (1.0, nca_of_proxies)}
        return SingleNetwork(proxy_head, self._losses, lambda _: tuning, groups)(task, train)

    def _losses(self, task: Increment) -> Losses:
        return {"nca": (1.0, nca), **(self.distillation(task) if task.index else {})}


def layer_groups(network: nn.Module) -> tuple[str, ...]:
    """Return the names of the groups of a network whose maps are compared, those that begin with "layer".

    Raises:
        InlayError: If the network is not a sequence with such groups.
    """
    groups = tuple(name for name, _ in network.named_children() if name.startswith("layer"))
    if not groups or not isinstance(network, nn.Sequential):
        raise InlayError(
            "PODNet and AFC compare the maps of groups named layer1, layer2 and so on, which this network does not "
            "have; write resnet32-rebuffi, or the name of another ResNet."
        )
    return groups


def proxy_head(task: Increment) -> ProxyHead:
    """Return a head over all classes; old proxies are those of the stage before, and frozen.

    New ones are random in the base stage, later the k-means centres of each new class's features under the network
    before, as long as old ones are on average.
    """
    if task.before is None:
        randomness = generator(task.seed, "head")
        return ProxyHead(random_proxies(task.classes, _PROXIES_PER_CLASS, task.feature_size, randomness))
    head = task.start.head
    assert isinstance(head, ProxyHead)
    new = task.of_new_classes()
    proxies = proxies_from_features(
        new.features(task.start.network),
        new.labels - task.old_classes,
        task.new_classes,
        _PROXIES_PER_CLASS,
        head.mean_length(),
        generator(task.seed, "proxies"),
    )
    return head.grown(proxies)


def nca(outputs: Outputs) -> Tensor:
    """Return the loss of the classes, in the form that PODNet's code has."""
    return nca_loss(outputs.scores, outputs.labels)


def nca_of_proxies(outputs: Outputs) -> Tensor:
    """Return the same loss with a gradient for the proxies and none for the scale."""
    head = outputs.classifier.head
    assert isinstance(head, ProxyHead)
    return nca_loss(head.scale.detach() * proxy_similarity(outputs.features, head.weights), outputs.labels)
