import random
import re
from typing import Annotated

from pydantic import Field

from rollmill import Resources, Rollout, Session, Verdict, tool


class Dice(Resources):
    """Rolls dice for the model, which must tell what they show together."""

    reverify_mode = "unsupported"  # the rolls are in the session, not in the row

    @tool
    async def roll(self, sides: Annotated[int, Field(ge=2, le=1000)], session: Session) -> dict[str, int]:
        """Roll one die; tells what it shows, and the sum of all dice so far."""
        rolls = session.state.setdefault("rolls", [])
        dice = random.Random(f"{session.row.get('seed', session.id)}/{len(rolls)}")
        rolls.append((sides, dice.randint(1, sides)))
        return {"shows": rolls[-1][1], "sum": _sum(rolls)}

    async def verify(self, rollout: Rollout, session: Session) -> Verdict:
        """Reward 1.0 when the wanted dice were rolled and the answer ends with their sum, else 0.0."""
        rolls = session.state.get("rolls", [])
        wanted = sorted(rollout.require("dice")) == sorted(sides for sides, _ in rolls)
        told = re.findall(r"\d+", rollout.text)[-1:] == [str(_sum(rolls))]
        return Verdict(float(wanted and told), {"dice_sum": _sum(rolls), "dice_rolled": len(rolls)})


def _sum(rolls: list[tuple[int, int]]) -> int:
    return sum(shown for _, shown in rolls)
