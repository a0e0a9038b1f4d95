"""Language model behind OpenAI's chat completions, over real HTTP."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from agentmemory_operator.adapters.language_model.openai_chat import ChatOptions, OpenAIChat
from agentmemory_operator.consolidation.rules.prompt_material import render_material
from agentmemory_operator.errors import ModelOutputInvalid, ModelUnavailable, SpecInvalid
from tests.support.web.http_server import serve
from tests.support.web.language_models import ScriptedModel
from tests.support.web.services import failure

SCHEMA = {
    "type": "object",
    "properties": {"ids": {"type": "array", "maxItems": 3, "items": {"type": "string", "maxLength": 8}}},
    "required": ["ids"],
}
MATERIAL = render_material([{"id": "m1", "content": "Ada lives in Rome"}], "mark")
Make = Callable[..., OpenAIChat]


def ids_of(rows: list[dict[str, Any]]) -> Any:
    return {"ids": [row["id"] for row in rows]}


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[ScriptedModel, str]]:
    service = ScriptedModel()
    with serve(service.app()) as url:
        yield service, f"{url}/v1"


@pytest.fixture
def service(running: tuple[ScriptedModel, str]) -> ScriptedModel:
    service, _ = running
    service.__init__(answers={"perfect": ids_of})  # type: ignore[misc]
    return service


@pytest.fixture
async def make(running: tuple[ScriptedModel, str]) -> AsyncIterator[Make]:
    """Factory of models of the service, with fast retries; closes them afterwards."""
    models: list[OpenAIChat] = []

    def make(**options: Any) -> OpenAIChat:
        given = {"model": "m", "api_key": "k", "base_url": running[1], "timeout_s": 5, "first_delay_s": 0.01}
        models.append(OpenAIChat(ChatOptions(**given | options)))
        return models[-1]

    yield make
    for model in models:
        await model.aclose()


def ask(model: OpenAIChat) -> Any:
    return model.complete("Name them.", MATERIAL.text, SCHEMA, 100)


async def test_answer_is_read(service: ScriptedModel, make: Make) -> None:
    completion = await ask(make())

    assert (completion.answer, completion.tokens_in, completion.tokens_out) == ({"ids": ["m1"]}, 10, 5)
    [body] = service.bodies
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["model"], body["max_tokens"], service.keys) == ("m", 100, ["Bearer k"])


@pytest.mark.parametrize(
    "refuses", [("max_tokens",), ("temperature",), ("response_format",)], ids=["bound", "temperature", "form"]
)
async def test_unsupported_field_is_omitted_from_then_on(
    refuses: tuple[str, ...], service: ScriptedModel, make: Make
) -> None:
    service.refuses = refuses
    model = make()

    await ask(model)
    first = len(service.bodies)
    await ask(model)

    assert 1 < first <= 3
    assert len(service.bodies) == first + 1


async def test_fenced_json_after_thoughts_is_read(service: ScriptedModel, make: Make) -> None:
    text = '<think>Perhaps {"ids": ["x"]}</think>\n```JSON\n{"ids": []}\n```'
    fenced = {"message": {"content": text}, "finish_reason": "stop"}
    service.faults = [JSONResponse({"choices": [fenced]})]

    assert (await ask(make())).answer == {"ids": []}


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -1, "completion_tokens": True}, {"prompt_tokens": 1e9}])
async def test_invalid_token_counts_are_estimated(usage: Any, service: ScriptedModel, make: Make) -> None:
    service.usage = usage

    completion = await ask(make())

    assert 1 < completion.tokens_in < 200
    assert 1 <= completion.tokens_out < 50


@pytest.mark.parametrize("mode", ["nonsense", "overflowing"])
async def test_error_does_not_quote_the_answer(mode: str, service: ScriptedModel, make: Make) -> None:
    service.mode = mode

    with pytest.raises(ModelOutputInvalid) as raised:
        await ask(make())

    assert raised.value.tokens_in == 10
    assert "Sure" not in str(raised.value)
    assert "and so on" not in str(raised.value)


@pytest.mark.parametrize(
    "answer",
    [
        {"ids": ["far too long an id"]},
        {"ids": [1]},
        {"more": []},
        [],
        "text",
        1,
    ],
)
async def test_answer_of_other_schema_is_refused(answer: Any, service: ScriptedModel, make: Make) -> None:
    service.answers = {"perfect": lambda _: answer}

    with pytest.raises(ModelOutputInvalid, match="is unusable"):
        await ask(make())


async def test_invalid_parts_are_dropped_and_counted(service: ScriptedModel, make: Make) -> None:
    service.answers = {"perfect": lambda _: {"ids": ["a", "far too long an id", 1, "b"], "x": 1}}

    completion = await ask(make())

    assert (completion.answer, completion.dropped) == ({"ids": ["a", "b"]}, 2)


@pytest.mark.parametrize(
    "document", [{}, {"choices": []}, {"choices": [{"message": {"content": None}}]}, {"choices": "x"}, [], 3]
)
async def test_malformed_response_is_refused(document: Any, service: ScriptedModel, make: Make) -> None:
    service.faults = [JSONResponse(document)]

    with pytest.raises(ModelOutputInvalid):
        await ask(make())


async def test_hanging_model_times_out(service: ScriptedModel, make: Make) -> None:
    service.mode = "hanging"

    with pytest.raises(ModelUnavailable):
        await asyncio.wait_for(ask(make(timeout_s=0.2)), 30)


async def test_transient_failure_is_retried(service: ScriptedModel, make: Make) -> None:
    service.faults = [failure(429, retry_after="0"), failure(503, retry_after="0")]

    assert (await ask(make())).answer == {"ids": ["m1"]}


async def test_lasting_failure_is_unavailable(service: ScriptedModel, make: Make) -> None:
    service.faults = [failure(503, retry_after="0") for _ in range(3)]

    with pytest.raises(ModelUnavailable, match="503"):
        await ask(make())


@pytest.mark.parametrize(
    ("status", "message"), [(401, "secretRef"), (403, "'m'"), (404, "baseURL"), (302, "redirects")]
)
async def test_permanent_failure_names_the_setting(
    status: int, message: str, service: ScriptedModel, make: Make
) -> None:
    service.faults = [failure(status, "a secret sentence", location="http://elsewhere.example")]

    with pytest.raises(SpecInvalid, match=message) as raised:
        await ask(make())

    assert "sentence" not in str(raised.value)


async def test_refused_text_is_reported_without_quoting(service: ScriptedModel, make: Make) -> None:
    model = make()
    await ask(model)
    service.faults = [JSONResponse({"error": {"code": "context_length_exceeded", "message": "Ada lives"}}, 400)]

    with pytest.raises(ModelOutputInvalid, match="context_length_exceeded") as raised:
        await ask(model)

    assert "Ada" not in str(raised.value)


async def test_oversized_response_is_not_read(service: ScriptedModel, make: Make) -> None:
    service.faults = [PlainTextResponse("x" * (2 << 20))]

    with pytest.raises(ModelOutputInvalid, match="larger"):
        await ask(make())


def test_missing_url_and_key_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="secretRef"):
        OpenAIChat(ChatOptions(model="m"))
