"""What a person looks at after a run: the HTML report, the table for the terminal and results.json."""

from inlay.review.content import DiscoveredClass, Report, RunFacts, StageSection
from inlay.review.report import render
from inlay.review.results import Results, validate_results
from inlay.review.table import stage_table

__all__ = [
    "DiscoveredClass",
    "Report",
    "Results",
    "RunFacts",
    "StageSection",
    "render",
    "stage_table",
    "validate_results",
]
