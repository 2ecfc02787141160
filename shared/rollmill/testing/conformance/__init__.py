"""Checks that an environment keeps the contract: one of Python's in this process, or any other behind a URL."""

from rollmill.testing.conformance.fixtures import Fixture, ToolCall, read_fixtures
from rollmill.testing.conformance.report import Check, Status
from rollmill.testing.conformance.runs import assert_conforms, check_service, check_url

__all__ = [
    "Check",
    "Fixture",
    "Status",
    "ToolCall",
    "assert_conforms",
    "check_service",
    "check_url",
    "read_fixtures",
]
