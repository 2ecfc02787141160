"""The cheapest agent there can be, for measuring the collector: every rollout is its row with a reward."""

from rollmill.config.settings import ServiceSettings
from rollmill.server.app import ServiceApp, build_app
from rollmill.server.calls import Answer, Call, HotRoute


def create_app(settings: ServiceSettings | None = None) -> ServiceApp:
    """Build the application."""
    route = HotRoute("POST", "/run", _run, "Give every rollout the reward 1")
    return build_app(settings or ServiceSettings.from_environment(), kind="agent", title="echo", hot=[route])


async def _run(call: Call) -> Answer:
    return Answer(call.body[:-1] + b',"reward":1.0}')
