from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.reward_model.routes import batch_routes
from rollmill_services.resources.reward_model.settings import RewardModelSettings
from rollmill_services.resources.reward_model.verifier import RewardModel


def create_app(settings: RewardModelSettings | None = None) -> ServiceApp:
    """Build the `reward_model` resources service; settings come from the environment when none are given."""

    def lost(why: str) -> None:
        app.runtime.not_ready = why

    resources = RewardModel(settings or RewardModelSettings.from_environment(), on_lost=lost)
    app = resources_app(resources, routes=batch_routes(resources))
    return app
