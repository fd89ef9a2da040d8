"""NCL (Zhong et al., CVPR 2021) without old images: AutoNovel's losses and neighbours in a queue as positives.

The supervised contrastive term and the hard negatives need old features and are left out.
"""

from torch import nn

from inlay.discovery.queue import FeatureQueue
from inlay.engine.randomness import generator
from inlay.methods import baseline_terms
from inlay.methods.method import Method, linear_novel_head
from inlay.methods.task import StageTask

__all__ = ["METHOD"]


def _queue(task: StageTask) -> dict[str, nn.Module]:
    size = task.settings.neighbourhood.queue
    return {"queue": FeatureQueue(size, task.head.in_features, generator(task.seed, "queue"))}


METHOD = Method(
    name="ncl",
    summary="NCL without old images: cosine pairs, consistency, neighbours in a queue; no joint head",
    terms=(baseline_terms.PAIRS, baseline_terms.CONSISTENCY, baseline_terms.NEIGHBOURHOOD),
    novel_head=linear_novel_head,
    joint=False,
    parts=_queue,
)
