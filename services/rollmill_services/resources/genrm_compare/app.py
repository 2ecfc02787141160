from rollmill.server import ServiceApp, resources_app
from rollmill_services.resources.genrm_compare.verifier import GenrmCompare, GenrmCompareSettings


def create_app(settings: GenrmCompareSettings | None = None) -> ServiceApp:
    """Build the `genrm_compare` resources service; settings come from the environment when none are given."""
    return resources_app(GenrmCompare(settings or GenrmCompareSettings.from_environment()))
