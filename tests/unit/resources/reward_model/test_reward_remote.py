"""Delegation to engines, against hand-written ones that answer as vLLM, SGLang and TEI do, traps included."""

import json
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from aiohttp import web

from rollmill.client.transport import Reply
from rollmill.contracts.json import JsonObject, JsonValue, dumps, loads
from rollmill.errors import ConfigError, ConnectError, OverloadedError, RollmillError, UpstreamError, is_retryable
from rollmill.testing import FakeTransport
from rollmill.testing.transport import SentCall
from rollmill_services.resources.reward_model.dialects import dialect_of
from rollmill_services.resources.reward_model.engine import Engine, count_raw_outputs
from rollmill_services.resources.reward_model.rendering import Rendered
from rollmill_services.resources.reward_model.scorer import Judgement, Scorer
from rollmill_services.resources.reward_model.settings import RewardModelSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = "sk-reward-secret"
PROBES = [Rendered("ab", (1, 2)), Rendered("cde", (3, 4, 5)), Rendered("f", (6,))]
Answer = Callable[[JsonObject], JsonValue]


def raw_score(ids: list[int]) -> float:
    """What the fake engines' model says."""
    return float(sum(ids)) - 5.0


def squash(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))


def vllm(body: JsonObject) -> JsonObject:
    """In reverse order, numbered; a sigmoid unless told otherwise."""
    scores = [raw_score(ids) for ids in body["input"]]
    shown = [squash(score) if body.get("use_activation", True) else score for score in scores]
    data = [{"index": n, "label": "LABEL_0", "probs": [score], "num_classes": 1} for n, score in enumerate(shown)]
    return {"id": "classify-1", "object": "list", "created": 1, "model": body["model"], "data": data[::-1], "usage": {}}


def old_vllm(body: JsonObject) -> JsonObject:
    """Knows no `use_activation`."""
    return vllm({**body, "use_activation": True})


def sglang(body: JsonObject) -> list[JsonObject]:
    return [{"embedding": [raw_score(ids)], "meta_info": {"prompt_tokens": len(ids)}} for ids in body["input_ids"]]


def softmaxed_sglang(body: JsonObject) -> list[JsonObject]:
    return [{"embedding": [1.0], "meta_info": {}} for _ in body["input_ids"]]


def tei(body: JsonObject) -> list[list[JsonObject]]:
    scores = [float(len(text)) - 2.5 for [text] in body["inputs"]]
    return [[{"score": score if body["raw_scores"] else squash(score), "label": "LABEL_0"}] for score in scores]


def stubborn_tei(body: JsonObject) -> list[list[JsonObject]]:
    return tei({**body, "raw_scores": False})


def settings(backend: str, **options: object) -> RewardModelSettings:
    values = {"model_name": "m", "backend": backend, "base_url": "http://engine", "api_key": KEY, **options}
    return RewardModelSettings.model_validate(values)


def engine_with(backend: str, answer: Callable[[SentCall], Reply], **options: object) -> tuple[Engine, FakeTransport]:
    transport = FakeTransport(answer)
    chosen = settings(backend, **options)
    return Engine(transport, dialect_of(backend, "m"), chosen, retry_base_seconds=0.0), transport


def answering(answer: Answer) -> Callable[[SentCall], Reply]:
    return lambda call: Reply(200, {}, dumps(answer(loads(call.body))))


def refusing(*statuses: int, then: Answer, body: bytes = b"busy") -> Callable[[SentCall], Reply]:
    left = list(statuses)
    return lambda call: Reply(left.pop(0), {"retry-after": "0"}, body) if left else answering(then)(call)


@pytest.mark.parametrize(
    ("backend", "answer", "expected", "path"),
    [
        ("vllm", vllm, [[-2.0], [7.0], [1.0]], "/classify"),
        ("sglang", sglang, [[-2.0], [7.0], [1.0]], "/classify"),
        ("tei", tei, [[-0.5], [0.5], [-1.5]], "/predict"),
    ],
)
async def test_raw_scores_come_through_in_order(
    backend: str, answer: Answer, expected: list[list[float]], path: str
) -> None:
    engine, transport = engine_with(backend, answering(answer))

    assert await engine.outputs(PROBES) == expected
    assert await count_raw_outputs(engine, dialect_of(backend, "m"), PROBES) == 1
    assert transport.calls[0].url == f"http://engine{path}"
    assert transport.calls[0].headers["authorization"] == f"Bearer {KEY}"


async def test_what_the_engines_are_sent_asks_for_scores_by_token_ids() -> None:
    sent = {}
    for backend, answer in {"vllm": vllm, "sglang": sglang, "tei": tei}.items():
        engine, transport = engine_with(backend, answering(answer))
        await engine.outputs(PROBES[:2])
        sent[backend] = json.loads(transport.calls[0].body)

    assert sent == {
        "vllm": {"model": "m", "input": [[1, 2], [3, 4, 5]], "use_activation": False},
        "sglang": {"model": "m", "input_ids": [[1, 2], [3, 4, 5]]},
        "tei": {"inputs": [["ab"], ["cde"]], "truncate": False, "raw_scores": True},
    }


@pytest.mark.parametrize(
    ("backend", "answer"), [("vllm", old_vllm), ("sglang", softmaxed_sglang), ("tei", stubborn_tei)]
)
async def test_an_engine_that_answers_probabilities_is_refused(backend: str, answer: Answer) -> None:
    engine, _ = engine_with(backend, answering(answer))

    with pytest.raises(ConfigError, match="probabilities instead of scores"):
        await count_raw_outputs(engine, dialect_of(backend, "m"), PROBES)


async def test_a_model_whose_activation_is_the_identity_is_accepted() -> None:
    engine, _ = engine_with("vllm", answering(lambda body: vllm({**body, "use_activation": False})))

    assert await count_raw_outputs(engine, dialect_of("vllm", "m"), PROBES) == 1


@pytest.mark.parametrize(
    ("backend", "answer"),
    [
        ("vllm", {"data": [{"index": 0, "probs": [1.0]}]}),
        ("vllm", {"data": [{"index": 0, "probs": [1.0]}] * 3}),
        ("vllm", {"data": [{"index": n, "probs": None} for n in range(3)]}),
        ("vllm", []),
        ("sglang", [{"embedding": [1.0]}] * 2),
        ("sglang", [{"embedding": ["x"]}] * 3),
        ("tei", [[{"score": 1.0, "label": "LABEL_0"}]] * 2),
        ("tei", [{"score": 1.0}] * 3),
    ],
)
async def test_an_answer_that_does_not_fit_the_request_is_no_score(backend: str, answer: JsonValue) -> None:
    engine, _ = engine_with(backend, answering(lambda _: answer))

    with pytest.raises(UpstreamError, match="not usable") as caught:
        await engine.outputs(PROBES)
    assert not is_retryable(caught.value)


async def test_several_outputs_of_tei_are_put_in_order_of_their_labels() -> None:
    entries = [{"score": 2.0, "label": "LABEL_1"}, {"score": 1.0, "label": "LABEL_0"}]
    engine, _ = engine_with("tei", answering(lambda body: [entries for _ in body["inputs"]]))

    assert await engine.outputs(PROBES[:1]) == [[1.0, 2.0]]


async def test_a_busy_engine_is_asked_again_within_bounds() -> None:
    patient, _ = engine_with("vllm", refusing(429, 503, 502, then=vllm), max_retries=3)
    impatient, transport = engine_with("vllm", refusing(429, 503, 502, then=vllm), max_retries=1)

    assert await patient.outputs(PROBES) == [[-2.0], [7.0], [1.0]]
    with pytest.raises(OverloadedError, match="503: busy"):
        await impatient.outputs(PROBES)
    assert len(transport.calls) == 2


@pytest.mark.parametrize(("status", "retryable"), [(400, False), (401, False), (413, False), (500, True)])
async def test_other_refusals_are_not_repeated(status: int, retryable: bool) -> None:
    engine, transport = engine_with("vllm", refusing(status, then=vllm, body=b"too long"))

    with pytest.raises(UpstreamError, match=f"{status}: too long") as caught:
        await engine.outputs(PROBES)
    assert (len(transport.calls), is_retryable(caught.value)) == (1, retryable)


@pytest.fixture
async def fake_vllm() -> "AsyncIterator[tuple[str, list[JsonObject]]]":
    """An engine on a real socket, and what it was sent."""
    requests: list[JsonObject] = []

    async def classify(request: web.Request) -> web.Response:
        body = await request.json()
        requests.append(body)
        return web.json_response(vllm(body))

    app = web.Application()
    app.router.add_post("/classify", classify)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", requests
    await runner.cleanup()


def talk(answer: str) -> list[JsonObject]:
    return [{"role": "user", "content": "hello"}, {"role": "assistant", "content": answer}]


async def test_a_scorer_in_front_of_an_engine_sends_it_the_ids_of_the_local_tokenizer(
    checkpoint: str, fake_vllm: "tuple[str, list[JsonObject]]"
) -> None:
    url, requests = fake_vllm
    scorer = Scorer(settings("vllm", model_name=checkpoint, base_url=url, batch_size=4, engine_model="served"))
    await scorer.open()
    try:
        judged = await scorer.score([talk("x" * n) for n in range(10)])
    finally:
        await scorer.close()

    sent = {raw_score(ids) for body in requests for ids in body["input"]}
    assert all(isinstance(one, Judgement) and one.reward in sent for one in judged)
    assert {body["model"] for body in requests} == {"served"}
    assert all(len(body["input"]) <= 4 for body in requests)


async def test_an_engine_that_is_down_is_an_error_at_start_without_the_key(checkpoint: str) -> None:
    scorer = Scorer(settings("vllm", model_name=checkpoint, base_url="http://127.0.0.1:9", max_retries=0))

    with pytest.raises(RollmillError) as caught:
        await scorer.open()
    assert isinstance(caught.value, ConnectError)
    assert KEY not in str(caught.value)
