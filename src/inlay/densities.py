"""Gaussians of the classes in place of the linear head, where the settings ask for them."""

from dataclasses import replace

from torch import nn

from inlay.discovery.density import density_head, needed_floor, shared_part, tempered
from inlay.engine.randomness import generator
from inlay.knowledge import Knowledge

__all__ = ["with_densities"]


def with_densities(knowledge: Knowledge) -> Knowledge:
    """Return knowledge with the densities that fit its statistics, or without any if none are asked for.

    They predict after a discovery stage or later ones; what was trained in the base stage stays.

    Args:
        knowledge: What is known; densities that it has already do not count.
    """
    settings = knowledge.settings.classifier
    if settings.decision == "linear" or not isinstance(knowledge.head, nn.Linear) or knowledge.record.index == 0:
        return replace(knowledge, densities=None)
    shared = shared_part(knowledge.statistics, settings.density_prior)
    numbers = (
        needed_floor(knowledge.statistics, settings.density_floor),
        settings.density_rank,
        settings.density_counts,
    )
    head = density_head(knowledge.statistics, shared, *numbers)
    randomness = generator(knowledge.seed, "densities", device=knowledge.device)
    return replace(knowledge, densities=tempered(head, knowledge.statistics, knowledge.head, randomness))
