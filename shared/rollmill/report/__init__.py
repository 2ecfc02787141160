"""Profiles for people: as one HTML page, and as text."""

from typing import TYPE_CHECKING

from rollmill._lazy import lazy_exports

if TYPE_CHECKING:
    from rollmill.report.page import render_report
    from rollmill.report.rollouts import find_rollouts
    from rollmill.report.text import describe_agents

__getattr__ = lazy_exports(
    __name__,
    {
        "describe_agents": "rollmill.report.text",
        "find_rollouts": "rollmill.report.rollouts",
        "render_report": "rollmill.report.page",
    },
)

__all__ = ["describe_agents", "find_rollouts", "render_report"]
