from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.instruction_following.verifier import (
    InstructionFollowing,
    InstructionFollowingSettings,
)


def create_app(settings: InstructionFollowingSettings | None = None) -> ServiceApp:
    """Build the `instruction_following` resources service; settings come from the environment when none are given."""
    return resources_app(InstructionFollowing(settings or InstructionFollowingSettings.from_environment()))
