"""Networks whose groups exist twice: a stable and a plastic copy, mixed group by group."""

import copy
from collections import OrderedDict

from torch import nn

from inlay.errors import InlayError
from inlay.increments.aggregation import AggregatedBlock, ScaledConv2d, aggregated, mixing_shares

__all__ = ["freeze_stable", "paired"]


def paired(network: nn.Module) -> nn.Module:
    """Double every group of a network (AANets, CVPR 2021); at first the pairs give the features of the network.

    What comes before the first group, the stem, is doubled with it. Groups keep their names.

    Args:
        network: A sequence with children named layer1, layer2 and so on, which is not changed; one whose groups are
            pairs already is returned as it is.

    Raises:
        InlayError: If it has no such groups.
    """
    if mixing_shares(network):
        return network
    groups = [name for name, _ in network.named_children() if name.startswith("layer")]
    if not groups or not isinstance(network, nn.Sequential):
        raise InlayError(
            "AANets doubles groups named layer1, layer2 and so on, which this network does not have; write "
            "resnet32-lucir, or the name of another ResNet."
        )
    parts: OrderedDict[str, nn.Module] = OrderedDict()
    stem: OrderedDict[str, nn.Module] = OrderedDict()
    for name, child in network.named_children():
        if name == groups[0]:
            parts[name] = aggregated(nn.Sequential(OrderedDict([*stem.items(), (name, child)])))
        elif name in groups:
            parts[name] = aggregated(child)
        elif parts:
            parts[name] = copy.deepcopy(child)
        else:
            stem[name] = child
    return nn.Sequential(parts)


def freeze_stable(network: nn.Module) -> None:
    """Take the gradients of what is not trained with the rest of a network of pairs: stable kernels, mixing shares."""
    for module in network.modules():
        if isinstance(module, ScaledConv2d):
            module.conv.requires_grad_(False)
        elif isinstance(module, AggregatedBlock):
            module.share.requires_grad_(False)
