import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from rollmill.cli.console import tell

if TYPE_CHECKING:
    from rollmill.local.state import Deployment


def down(
    grace: Annotated[float, typer.Option(min=0, help="Seconds to stop in, for each kind of service.")] = 35.0,
) -> None:
    """Stop what `up` started in this folder."""
    from rollmill.local.state import StateDir

    state = StateDir.default()
    deployment = state.load()
    if deployment is None:
        tell(f"nothing is running here ({state.path} has no record of `up`)")
        return
    killed = asyncio.run(_stop(deployment, grace))
    state.remove_settings()
    state.forget()
    tell(f"stopped the {len(deployment.processes)} services of {deployment.topology}")
    if killed:
        tell(f"{killed} of them did not stop in time and were killed")


async def _stop(deployment: "Deployment", grace: float) -> int:
    """Stop the process of `up` first, which else would start its services again, then what it left."""
    from rollmill.local.processes import stop_in_stages
    from rollmill.local.state import STAGES

    # A watching `up` stops its services itself, one stage after the other.
    await stop_in_stages([[deployment.launcher]], grace_seconds=grace * len(STAGES) + 1)
    return len(await stop_in_stages(deployment.stop_order(), grace_seconds=grace))
