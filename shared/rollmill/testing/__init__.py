"""Fakes and fixtures for tests of environments, agents and models: hand-written, real applications underneath."""

from rollmill.server.in_process import run_in_process as service_client
from rollmill.testing.apps import asgi_client
from rollmill.testing.episodes import FakeEpisode
from rollmill.testing.judges import judge_answer
from rollmill.testing.models import FakeModel, FakeModels
from rollmill.testing.proxy import FaultPlan, FaultyProxy
from rollmill.testing.time import FakeClock
from rollmill.testing.transport import FakeTransport

__all__ = [
    "FakeClock",
    "FakeEpisode",
    "FakeModel",
    "FakeModels",
    "FakeTransport",
    "FaultPlan",
    "FaultyProxy",
    "asgi_client",
    "judge_answer",
    "service_client",
]
