"""A discovery stage with its images, as decisions left it: what the review page and the report are made of."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from inlay.decisions import Decision
from inlay.engine.progress import Progress, counting
from inlay.knowledge import Knowledge
from inlay.reading import read_images
from inlay.review.server.images import StageImages, folder_of_stage
from inlay.review.server.members import Members, members_after, members_of_stage

__all__ = ["DecidedStage", "find_images", "open_stage"]


class DecidedStage:
    """The classes of a stage after the decisions about it, and the images of each.

    Args:
        before: What the stage itself left behind.
        after: What is known after the decisions.
        taken: The decisions, the oldest first.
        images: The images of the stage.
        features: Their features, [N, D] on the CPU; NaN for those that are not there.

    Attributes:
        before: What the stage itself left behind.
        after: What is known after the decisions.
        taken: The decisions, the oldest first.
        images: The images of the stage.
        features: Their features.
        members: Images of each class after the decisions.
    """

    def __init__(
        self, before: Knowledge, after: Knowledge, taken: Sequence[Decision], images: StageImages, features: Tensor
    ) -> None:
        self.before, self.images, self.features = before, images, features
        self.first_members = members_of_stage(before)
        self.follow(taken, after)

    def follow(self, taken: Sequence[Decision], after: Knowledge) -> None:
        """Take over the outcome of decisions.

        Args:
            taken: All decisions since the stage, the oldest first.
            after: What is known after them.
        """
        self.members: Members = members_after(self.first_members, taken, len(self.before.registry))
        self.taken, self.after = list(taken), after

    @property
    def stage(self) -> int:
        """Number of the stage."""
        return self.before.record.index

    def present(self, id: int) -> list[int]:
        """Return the images of a class that are at hand."""
        return [image for image in self.members.get(id, ()) if self.images.name(image)]

    def missing(self, id: int) -> int:
        """Return how many images of a class are gone or have changed."""
        return len(self.members.get(id, ())) - len(self.present(id))

    def may_split(self, id: int) -> bool:
        """Whether the images of a class are all at hand, and there are enough of them."""
        images = self.members.get(id, ())
        complete = len(images) == list(self.after.registry)[id].size
        return complete and len(images) > 2 and not self.features[list(images)].isnan().any()


def open_stage(
    before: Knowledge, after: Knowledge, taken: Sequence[Decision], source: Any, progress: Progress
) -> DecidedStage:
    """Read the images of a stage again and compute their features.

    Args:
        before: What the stage itself left behind.
        after: What is known after the decisions.
        taken: The decisions, the oldest first.
        source: Anything that `inlay.data.load` reads, the images of the stage among them; None looks where they were.
        progress: Receiver of news.

    Raises:
        InlayError: If the images are not found.
    """
    return DecidedStage(before, after, taken, *find_images(before, source, progress))


def find_images(knowledge: Knowledge, source: Any, progress: Progress) -> tuple[StageImages, Tensor]:
    """Find the images of a stage again, and say which are missing.

    Args:
        knowledge: What the stage itself left behind.
        source: As for `open_stage`.
        progress: Receiver of news.

    Returns:
        The images and their features, [N, D] on the CPU; NaN for those that are not there.

    Raises:
        InlayError: If none of them is found.
    """
    place = str(folder_of_stage(knowledge)) if source is None else source
    form = knowledge.form
    # Images that cannot be read were in no stage, so they are not missed here.
    options = {"size": form.size, "channels": form.channels, "skip_bad": True, "cache": True}
    read = read_images(place, progress, stream=None, tell_left_out=False, **options)
    found = StageImages(knowledge, read, str(place) if isinstance(place, str) else "what was given")
    if len(found.found) < len(found):
        progress.note(f"Found {len(found.found):,} of the {len(found):,} images of stage {knowledge.record.index}.")
        _tell_missing(knowledge, found, progress)
    with counting(progress, "looking at images") as report:
        features = found.features(knowledge, report)
    return found, features


def _tell_missing(knowledge: Knowledge, images: StageImages, progress: Progress) -> None:
    """Name an image that stands for a class and is not there."""
    there = {images.fingerprints[position] for position in images.found.tolist()}
    medoids = [medoid for entry in knowledge.registry.of_stage(knowledge.record.index) for medoid in entry.medoids]
    gone = [medoid.path for medoid in medoids if medoid.pixels not in there]
    if gone:
        progress.note(
            f"Of the {len(medoids)} images that stand for its classes {len(gone)} are missing or have changed since, "
            f"such as '{gone[0]}'."
        )
