"""The report of a run: one HTML file that needs nothing but a browser."""

from html import escape

from inlay.review.content import Report
from inlay.review.sections import accuracy_section, facts_section, headline_section, stage_section
from inlay.review.style import STYLE

__all__ = ["render", "whole_page"]


def render(report: Report) -> str:
    """Write a report as one self-contained HTML page: no scripts, pictures inside, nothing fetched.

    Args:
        report: what to show.

    Raises:
        ValueError: if pictures of a discovered class are not uint8 [n, 1 or 3, H, W].
    """
    body = "\n".join(
        (
            headline_section(report),
            accuracy_section(report.stages),
            *(stage_section(stage) for stage in report.stages),
            facts_section(report.facts),
        )
    )
    return whole_page(report.title, body)


def whole_page(title: str, body: str) -> str:
    """Return a page that looks like all reports.

    Args:
        title: Title of the page, as plain text.
        body: Its content, as HTML.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )
