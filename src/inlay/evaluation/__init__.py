"""Matching of clusters to true classes, and the scores taken after each stage."""

from inlay.evaluation.matching import MatchedOn, Matching, map_truth, match_clusters
from inlay.evaluation.metrics import Scores, score, score_predictions
from inlay.evaluation.predictions import PredictionRow, read_predictions, score_file

__all__ = [
    "MatchedOn",
    "Matching",
    "PredictionRow",
    "Scores",
    "map_truth",
    "match_clusters",
    "read_predictions",
    "score",
    "score_file",
    "score_predictions",
]
