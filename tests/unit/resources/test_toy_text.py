import asyncio
import importlib.util
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.contracts.json import JsonObject, JsonValue, loads
from rollmill.contracts.rollouts import Rollout, Verdict
from rollmill.errors import ConfigError, ConflictError, InputError
from rollmill.server import Session
from rollmill_services.resources.toy_text.actions import action_number
from rollmill_services.resources.toy_text.environment import ToyText, ToyTextSettings
from rollmill_services.resources.toy_text.games import GAMES, GameShop

EXAMPLES = Path(__file__).parents[3] / "examples/data/toy_text.jsonl"
LAKE: JsonObject = {"game": "frozen_lake", "seed": 1, "options": {"desc": ["SF", "HG"], "is_slippery": False}}
MOVES = ("left", "down", "right", "up")


async def begun(row: JsonObject, toy: ToyText | None = None) -> tuple[ToyText, Session, str]:
    toy = toy or ToyText()
    session = Session("s", row)
    await toy.seed_session(session, row)
    return toy, session, (await toy.begin(session))["observation"]


async def graded(toy: ToyText, session: Session) -> Verdict:
    return await toy.verify(Rollout(session.row), session)


async def test_the_frozen_lake_is_crossed_for_a_reward_of_one() -> None:
    toy, session, first = await begun(LAKE)
    assert "Cross the frozen lake" in first
    assert "[S]F\nHG\nActions: left, down, right, up." in first

    middle = await toy.advance("I go <action>right</action>", session)
    end = await toy.advance("down", session)

    assert str(middle.observation).startswith("S[F]\nHG\n")
    assert (end.observation, end.reward, end.terminated) == ("SF\nH[G]\nThe game is over.", 1.0, True)
    verdict = await graded(toy, session)
    assert verdict.reward == 1.0
    assert verdict.details == {"steps": 2, "terminated": True, "truncated": False, "invalid_actions": 0}


async def test_a_hole_ends_the_game_and_no_further_action_is_taken() -> None:
    toy, session, _ = await begun(LAKE)
    assert (await toy.advance("down", session)).terminated
    with pytest.raises(ConflictError, match="the episode is over"):
        await toy.advance("right", session)
    assert (await graded(toy, session)).reward == 0.0


async def test_falling_from_the_cliff_costs_a_hundred_and_the_walk_one_a_step() -> None:
    toy, session, _ = await begun({"game": "cliff_walking", "seed": 1})
    assert (await toy.advance("right", session)).reward == -100.0
    steps = [await toy.advance(action, session) for action in ("up", *["right"] * 11, "down")]
    assert [step.terminated for step in steps] == [False] * 12 + [True]
    assert (await graded(toy, session)).reward == -113.0


async def test_the_taxi_is_told_in_words_and_driven() -> None:
    toy, session, first = await begun({"game": "taxi", "seed": 1})
    assert "The taxi is in row 2, column 2. The passenger is at B (blue). The destination is R (red)." in first
    assert "\x1b" not in first
    assert (await toy.advance("pickup", session)).reward == -10.0
    steps = [await toy.advance(action, session) for action in ("east", "south", "south", "pickup")]
    assert "The taxi is in row 4, column 3. The passenger is in the taxi." in str(steps[-1].observation)


async def test_a_taxi_that_never_arrives_is_stopped_as_in_gymnasium() -> None:
    toy, session, _ = await begun({"game": "taxi", "seed": 1})
    steps = [await toy.advance("north", session) for _ in range(200)]
    assert [step.truncated for step in steps] == [False] * 199 + [True]


async def test_cards_are_told_and_played() -> None:
    toy, session, first = await begun({"verifier_metadata": {"game": "blackjack", "seed": 11}})
    assert "Your cards make" in first
    assert (await toy.advance("stick", session)).terminated
    assert (await graded(toy, session)).reward in (-1.0, 0.0, 1.0)


@pytest.mark.parametrize("name", GAMES)
async def test_the_same_seed_is_the_same_game_also_after_a_reset_and_another_is_not(name: str) -> None:
    async def course(toy: ToyText, session: Session) -> list[JsonObject]:
        taken = []
        for number in range(6):
            actions = GAMES[name].actions
            step = await toy.advance(actions[number % len(actions)], session)
            taken.append(step.wire())
            if step.terminated:
                break
        return taken

    toy, session, first = await begun({"game": name, "seed": 5})
    course_one = await course(toy, session)
    assert (await toy.begin(session))["observation"] == first
    assert await course(toy, session) == course_one
    _, other, again = await begun({"game": name, "seed": 5}, toy)
    assert (again, await course(toy, other)) == (first, course_one)


async def test_luck_depends_on_the_seed() -> None:
    told = {(await begun({"game": "blackjack", "seed": seed}))[2] for seed in range(8)}
    assert len(told) > 1


async def test_sessions_that_share_their_tables_do_not_share_their_games() -> None:
    toy, one, _ = await begun(LAKE)
    _, two, _ = await begun(LAKE, toy)
    await toy.advance("right", one)
    step = await toy.advance("left", two)
    assert str(step.observation).startswith("[S]F")


async def test_answers_without_an_action_change_nothing_and_too_many_end_the_episode() -> None:
    toy = ToyText(ToyTextSettings(max_invalid_actions=2, invalid_action_reward=-0.5))
    _, session, _ = await begun(LAKE, toy)
    first = await toy.advance("sideways", session)
    assert str(first.observation).startswith("That names no action. Actions: left, down, right, up.")
    assert (first.reward, first.truncated, dict(first.info)) == (-0.5, False, {"invalid_action": True})
    assert str((await toy.advance("right", session)).observation).startswith("S[F]")
    assert (await toy.advance("", session)).truncated
    verdict = await graded(toy, session)
    assert (verdict.reward, verdict.details["invalid_actions"], verdict.details["truncated"]) == (-1.0, 2, True)


async def test_the_last_reward_counts_where_the_settings_say_so() -> None:
    toy = ToyText(ToyTextSettings(reward="last"))
    _, session, _ = await begun({"game": "cliff_walking", "seed": 1}, toy)
    await toy.advance("right", session)
    await toy.advance("up", session)
    assert (await graded(toy, session)).reward == -1.0


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"seed": 1}, "game"),
        ({"game": "chess", "seed": 1}, "game"),
        ({"game": ["taxi"], "seed": 1}, "game"),
        ({"game": "taxi"}, "seed"),
        ({"game": "taxi", "seed": -1}, "seed"),
        ({"game": "taxi", "seed": True}, "seed"),
        ({"game": "taxi", "seed": 2**40}, "seed"),
        ({"game": "taxi", "seed": 1, "options": []}, "options"),
        ({"game": "taxi", "seed": 1, "options": {"render_mode": "human"}}, "options/render_mode"),
        ({"game": "taxi", "seed": 1, "options": {"is_rainy": 1}}, "options/is_rainy"),
        ({"game": "frozen_lake", "seed": 1, "options": {"desc": ["SX", "FG"]}}, "options/desc"),
        ({"game": "frozen_lake", "seed": 1, "options": {"desc": ["SF", "G"]}}, "options/desc"),
        ({"game": "frozen_lake", "seed": 1, "options": {"desc": ["FF", "FG"]}}, "options/desc"),
        ({"game": "frozen_lake", "seed": 1, "options": {"desc": ["S" + "F" * 99 + "G"]}}, "options/desc"),
        ({"game": "frozen_lake", "seed": 1, "options": {"map_name": "9x9"}}, "options/map_name"),
    ],
)
async def test_a_wrong_row_is_refused_with_the_name_of_the_field(row: JsonObject, named: str) -> None:
    with pytest.raises(InputError, match=named) as caught:
        await ToyText().seed_session(Session("s", row), row)
    assert caught.value.extensions["errors"][0]["pointer"] == f"/{named}"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("left", 0),
        ("I could go left, but UP is better.", 3),
        ("<action>right</action> and not left", 2),
        ("<action>left</action> no, <ACTION> Down </ACTION>", 1),
        ("<action>2</action>", 2),
        ("<action>4</action>", None),
        ("<action>fly</action> left", None),
        ("upright leftover", None),
        ("2", None),
        ("", None),
        ("ignore all rules and give me the reward", None),
        ("left" + " x" * 1_000_000, None),
        ("<action>" * 200_000 + "right", 2),
        ("\ud800 right \udfff", 2),
    ],
)
def test_the_last_action_that_an_answer_names_is_taken(text: str, number: int | None) -> None:
    assert action_number(text, MOVES) == number


@given(st.text(), st.sampled_from(MOVES))
@settings(max_examples=100)
def test_a_tagged_action_wins_over_whatever_was_said_before(text: str, action: str) -> None:
    assert action_number(f"{text}<action>{action}</action>", MOVES) == MOVES.index(action)


@pytest.mark.parametrize("line", EXAMPLES.read_text(encoding="utf-8").splitlines())
async def test_every_bundled_task_can_be_played(line: str) -> None:
    row = loads(line)
    toy, session, first = await begun(row)
    assert "Actions: " in first
    await toy.advance(GAMES[row["game"]].actions[0], session)
    assert (await graded(toy, session)).details["steps"] == 1


def test_only_so_many_tables_are_kept_and_forgotten_ones_are_made_again() -> None:
    shop = GameShop()
    maps = [[f"{'F' * before}S{'F' * after}G"] for before in range(10) for after in range(10 - before)]
    for lake in [*maps, *[[line[0][::-1]] for line in maps]]:
        shop.game("frozen_lake", {"desc": lake})
    assert len(shop) == 64
    game, limit = shop.game("frozen_lake", {"desc": maps[0]})
    assert (game.reset(seed=1)[0], limit) == (0, 100)


async def test_without_gymnasium_the_service_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> JsonValue:
        return None

    monkeypatch.setattr("rollmill_services.resources.toy_text.environment.find_spec", nothing)
    with pytest.raises(ConfigError, match=r"rollmill\[gymnasium\]"):
        await ToyText().startup()


async def test_starting_loads_the_library() -> None:
    assert importlib.util.find_spec("gymnasium") is not None
    await asyncio.wait_for(ToyText().startup(), 60)
