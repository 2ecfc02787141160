"""The batch endpoints beside `/verify`."""

from collections.abc import Sequence

from rollmill.contracts.json import JsonObject, JsonValue
from rollmill.errors import InputError, RollmillError
from rollmill.server.calls import Answer, Call, HotRoute, json_answer
from rollmill_services.resources.reward_model.conversations import chat_messages, conversations_of
from rollmill_services.resources.reward_model.member import Conversation
from rollmill_services.resources.reward_model.scorer import Judgement
from rollmill_services.resources.reward_model.steps import answer_of, error_entry, observation
from rollmill_services.resources.reward_model.verifier import RewardModel


def batch_routes(resources: RewardModel) -> list[HotRoute]:
    """Make `/score`, `/step`, `/get_reward` and `/info`; a caller that leaves takes its conversations along."""

    async def score(call: Call) -> Answer:
        body = call.json_object()
        judged = await _judge(resources, conversations_of(body, "conversations"), "conversations")
        return json_answer(score_answer(judged, debug=body.get("debug") is True), keep=False)

    async def step(call: Call) -> Answer:
        body = call.json_object()
        logs = conversations_of(body, "message_logs")
        _check_infos(body.get("env_infos"), len(logs))
        return json_answer(step_answer(await _judge(resources, logs, "message_logs"), logs), keep=False)

    async def get_reward(call: Call) -> Answer:
        judged = await _judge(resources, conversations_of(call.json_object(), "query"), "query")
        return json_answer({"rewards": [_reward_or_raise(one) for one in judged]}, keep=False)

    async def info(_: Call) -> Answer:
        return json_answer(resources.scorer.report())

    return [
        HotRoute("POST", "/score", score, "Score a batch of conversations; each fails alone", watched=True),
        HotRoute("POST", "/step", step, "Score message logs, answered as NeMo RL's environments do", watched=True),
        HotRoute("POST", "/get_reward", get_reward, "Score rendered texts, as OpenRLHF's remote reward", watched=True),
        HotRoute("GET", "/info", info, "The model, how it batches, its queue and counters"),
    ]


def score_answer(judged: Sequence[Judgement | RollmillError], *, debug: bool) -> JsonObject:
    """Return the answer of `/score`: lists in the order of the conversations, null where there is no value."""
    details = [one.details() if isinstance(one, Judgement) else {} for one in judged]
    answer: JsonObject = {
        "scores": _rewards(judged),
        "scores_raw": [each.get("score_raw") for each in details],
        "num_tokens": [each.get("num_tokens") for each in details],
        "truncated": [each.get("truncated") for each in details],
        "details": details,
        "errors": [None if isinstance(one, Judgement) else error_entry(one) for one in judged],
    }
    if debug:
        rendered = [one.rendered if isinstance(one, Judgement) else None for one in judged]
        answer["rendered"] = [one.text if one else None for one in rendered]
        answer["token_ids"] = [list(one.ids) if one else None for one in rendered]
    return answer


def step_answer(judged: Sequence[Judgement | RollmillError], logs: Sequence[JsonValue]) -> JsonObject:
    """Return the fields of NeMo RL's `EnvironmentReturn`, and `errors`; a reward that is missing is null."""
    return {
        "observations": [observation(one) for one in judged],
        "metadata": [None] * len(judged),
        "next_stop_strings": [None] * len(judged),
        "rewards": _rewards(judged),
        "terminateds": [True] * len(judged),
        "answers": [answer_of(log) for log in logs],
        "errors": [None if isinstance(one, Judgement) else error_entry(one) for one in judged],
    }


async def _judge(resources: RewardModel, values: Sequence[JsonValue], name: str) -> list[Judgement | RollmillError]:
    conversations: list[Conversation] = [
        value if isinstance(value, str) else chat_messages(value, f"/{name}/{index}")
        for index, value in enumerate(values)
    ]
    return await resources.scorer.score(conversations) if conversations else []


def _rewards(judged: Sequence[Judgement | RollmillError]) -> list[float | None]:
    return [one.reward if isinstance(one, Judgement) else None for one in judged]


def _reward_or_raise(one: Judgement | RollmillError) -> float:
    if isinstance(one, RollmillError):
        raise one  # this protocol has no place for a failure of one text
    return one.reward


def _check_infos(infos: JsonValue, count: int) -> None:
    if infos is not None and (not isinstance(infos, list) or len(infos) != count):
        fault = {"pointer": "/env_infos", "detail": "must be a list as long as message_logs"}
        raise InputError("env_infos must be a list as long as message_logs", errors=[fault])
