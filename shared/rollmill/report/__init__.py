"""Profiles for people: as one HTML page, and as text."""

from typing import TYPE_CHECKING

from rollmill._lazy import lazy_exports

if TYPE_CHECKING:
    from rollmill.report.page import render_report
    from rollmill.report.summaries import made_of, summarize_agents
    from rollmill.report.text import describe_agents

__getattr__ = lazy_exports(
    __name__,
    {
        "describe_agents": "rollmill.report.text",
        "made_of": "rollmill.report.summaries",
        "render_report": "rollmill.report.page",
        "summarize_agents": "rollmill.report.summaries",
    },
)

__all__ = ["describe_agents", "made_of", "render_report", "summarize_agents"]
