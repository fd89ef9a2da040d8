"""A base stage in which every quarter turn of a class counts as a class of its own."""

import torch
from torch import Tensor, nn

from inlay.data.augment import augmentation
from inlay.data.draws import Draws
from inlay.engine.batch import Batch
from inlay.engine.passes import pass_views
from inlay.engine.randomness import generator
from inlay.engine.work import Work
from inlay.errors import InlayError
from inlay.heads import linear
from inlay.increments.increment import Increment
from inlay.increments.reparameterised import selective_classification

__all__ = ["TurnedWork"]

_TURNS = 4


class TurnedWork(Work):
    """Tells class and quarter turn apart together, on all four turns of each image (PASS, CVPR 2021).

    Args:
        task: The base stage.
        network: From inputs to features [B, D]; it is trained in place.

    Raises:
        InlayError: If the images are not square.
    """

    def __init__(self, task: Increment, network: nn.Module) -> None:
        super().__init__()
        height, width = task.form.size
        if height != width:
            raise InlayError(f"NECIL turns the images of its base stage, so they must be square, not {width}×{height}.")
        self.network = network
        self.head = linear(task.feature_size, _TURNS * task.classes, generator(task.seed, "head")).to(task.device)
        self._task = task

    def weights(self, progress: float) -> dict[str, float]:
        """Return the weight of the one loss."""
        return {"turned classes": 1.0}

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of a batch: the cross-entropy of all turns among all turned classes, at temperature 0.1."""
        recipe, labels = self._task.recipe, self._task.labels[batch.indices]
        view = self._task.form.normalise(augmentation(recipe.view)(batch.images, Draws(batch.key, batch.rows)))
        views = tuple(view.rot90(turn, (2, 3)) for turn in range(_TURNS))
        features = torch.cat(pass_views(self.network, views, recipe.base.precision))
        targets = torch.cat([_TURNS * labels + turn for turn in range(_TURNS)])
        return {"turned classes": selective_classification(self.head(features), targets)}

    @torch.no_grad()
    def upright_head(self) -> nn.Linear:
        """Return a head over the classes alone: the rows of images that are not turned, as PASS predicts by them."""
        weight, bias = self.head.weight[::_TURNS], self.head.bias[::_TURNS]
        head = nn.Linear(weight.shape[1], weight.shape[0], device="meta").to_empty(device=weight.device)
        head.weight.copy_(weight)
        head.bias.copy_(bias)
        return head
