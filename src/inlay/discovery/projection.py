"""Projection of features on their principal directions, and the clustering head that starts from it."""

import torch
from torch import Tensor, nn

from inlay.discovery.student import student_assignments

__all__ = ["StudentHead", "principal_projection"]


@torch.no_grad()
def principal_projection(features: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Find the directions in which features vary most, so that z = matrix @ (x - mean) keeps most of them.

    The singular value decomposition runs in float64. The largest entry of each direction by absolute value is
    made positive, as the decomposition leaves the sign open.

    Args:
        features: Features of some images, [N, D].
        size: Directions K to keep, 1 to the smaller of N and D.

    Returns:
        The matrix, [K, D], of orthonormal rows in falling order of variance, and the mean, [D]; in at least
        float32.

    Raises:
        ValueError: If the size is too large or below 1, or a feature is not finite.
    """
    if features.ndim != 2:
        raise ValueError(f"features must be [N, D]; got {tuple(features.shape)}")
    images, dimensions = features.shape
    if size < 1:
        raise ValueError(f"a projection needs 1 direction or more; got {size}")
    if images < size or dimensions < size:
        raise ValueError(
            f"{size} directions need at least {size} images of at least {size} dimensions; "
            f"got {images} images of {dimensions} dimensions"
        )
    if not torch.isfinite(features).all():
        raise ValueError("features must be finite")
    precision = torch.promote_types(features.dtype, torch.float32)
    exact = features.double()
    mean = exact.mean(dim=0)
    directions = torch.linalg.svd(exact - mean, full_matrices=False).Vh[:size]
    largest = directions.gather(1, directions.abs().argmax(dim=1, keepdim=True))
    return (directions * largest.sign()).to(precision), mean.to(precision)


class StudentHead(nn.Module):
    """Embeds features by a linear bottleneck and assigns them softly to as many centres.

    The bottleneck starts as the given projection and the centres as given; both can be trained.

    Args:
        matrix: Starting projection, [K, D]; see `principal_projection`.
        mean: Mean of the features that the projection takes off, [D].
        centres: Starting centres in the space of the projection, [K, K].

    Raises:
        ValueError: If the shapes do not fit.
    """

    def __init__(self, matrix: Tensor, mean: Tensor, centres: Tensor) -> None:
        super().__init__()
        if matrix.ndim != 2 or mean.shape != matrix.shape[1:] or centres.shape != (len(matrix), len(matrix)):
            raise ValueError(
                f"a head needs a matrix [K, D], a mean [D] and centres [K, K]; "
                f"got {tuple(matrix.shape)}, {tuple(mean.shape)} and {tuple(centres.shape)}"
            )
        matrix, mean = matrix.detach(), mean.detach()
        size, inputs = matrix.shape
        # Made on the meta device, as drawing weights that are overwritten would disturb the global generator.
        empty = nn.Linear(inputs, size, device="meta", dtype=matrix.dtype)
        self.bottleneck = empty.to_empty(device=matrix.device)
        with torch.no_grad():
            self.bottleneck.weight.copy_(matrix)
            self.bottleneck.bias.copy_(-matrix.double() @ mean.double())
        self.centres = nn.Parameter(centres.detach().clone().to(matrix))

    def forward(self, features: Tensor) -> Tensor:
        """Return assignments whose rows sum to 1, [B, K], for features [B, D]."""
        return student_assignments(self.bottleneck(features), self.centres)
