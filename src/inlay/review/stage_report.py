"""The report of one stage: what the review page shows, as one HTML file that needs nothing but a browser."""

from inlay.review.report import whole_page
from inlay.review.stage import DecidedStage
from inlay.review.stage_sections import (
    classes_section,
    count_section,
    decisions_section,
    forgetting_section,
    map_section,
    pile_section,
    stage_facts,
    stage_headline,
)

__all__ = ["render_stage"]


def render_stage(stage: DecidedStage, run: str) -> str:
    """Write a stage as one self-contained HTML page: no scripts, pictures inside, nothing fetched.

    Args:
        stage: The stage as decisions left it, with its images.
        run: Name of the run; may be empty.
    """
    title = f"{run}, stage {stage.stage}" if run else f"Stage {stage.stage}"
    sections = (classes_section, map_section, count_section, pile_section, forgetting_section, decisions_section)
    parts = [stage_headline(stage, title), *(section(stage) for section in sections), stage_facts(stage)]
    return whole_page(title, "\n".join(filter(None, parts)))
