"""OpenAI embedder against a service over real HTTP."""

import base64
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder, OpenAIOptions
from agentmemory_operator.connections.embedders import embed_each
from agentmemory_operator.errors import (
    EmbedderFailed,
    EmbedderOutputInvalid,
    EmbedderUnavailable,
    RequestInvalid,
    SpecInvalid,
)
from tests.support.patience import Patience
from tests.support.web.http_server import serve
from tests.support.web.services import FakeOpenAI, embedding_of, failure


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[FakeOpenAI, str]]:
    service = FakeOpenAI()
    with serve(service.app()) as url:
        yield service, f"{url}/v1"


@pytest.fixture
def service(running: tuple[FakeOpenAI, str]) -> FakeOpenAI:
    service, _ = running
    service.__init__()  # type: ignore[misc]
    return service


@pytest.fixture
def url(running: tuple[FakeOpenAI, str]) -> str:
    return running[1]


Make = Callable[..., OpenAIEmbedder]


@pytest.fixture
async def embedder(url: str) -> AsyncIterator[Make]:
    """Factory of embedders of the service, with fast retries; closes them afterwards."""
    embedders: list[OpenAIEmbedder] = []

    def make(**options: Any) -> OpenAIEmbedder:
        given = {"model": "m", "dimensions": 8, "api_key": "k", "base_url": url, "timeout_s": 5, "first_delay_s": 0.02}
        embedders.append(OpenAIEmbedder(OpenAIOptions(**given | options)))
        return embedders[-1]

    yield make
    for embedder in embedders:
        await embedder.aclose()


async def test_vectors_keep_the_order_of_texts(service: FakeOpenAI, embedder: Make) -> None:
    service.is_reversed = True

    vectors = await embedder().embed(["a", "b", "c"])

    assert vectors == [embedding_of(text, 8) for text in "abc"]


async def test_texts_are_sent_in_batches(service: FakeOpenAI, embedder: Make) -> None:
    vectors = await embedder(batch_size=2).embed(["a", "b", "c", "d", "e"])

    assert [body["input"] for body in service.bodies] == [["a", "b"], ["c", "d"], ["e"]]
    assert vectors == [embedding_of(text, 8) for text in "abcde"]


async def test_no_text_sends_no_request(service: FakeOpenAI, embedder: Make) -> None:
    assert await embedder().embed([]) == []
    assert service.bodies == []


async def test_key_is_sent(service: FakeOpenAI, embedder: Make) -> None:
    await embedder(api_key="secret").embed(["a"])

    assert service.keys == ["Bearer secret"]


@pytest.mark.parametrize("key", ["two\nlines", "two\r\nlines", "k\n", "k\0"])
async def test_invalid_key_is_reported_without_quoting(service: FakeOpenAI, embedder: Make, key: str) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.embedding\.secretRef: .* as one line") as raised:
        await embedder(api_key=key).embed(["a"])

    assert key not in str(raised.value)
    assert service.keys == []


async def test_key_of_environment_is_not_used(
    service: FakeOpenAI, embedder: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "of somebody else")

    await embedder(api_key=None).embed(["a"])

    assert service.keys == ["Bearer none"]


@pytest.mark.parametrize(("model", "sent"), [("text-embedding-3-small", 8), ("nomic-embed", None)])
async def test_dimensions_are_sent_to_models_that_shorten(
    service: FakeOpenAI, embedder: Make, model: str, sent: int | None
) -> None:
    await embedder(model=model).embed(["a"])

    assert service.bodies[0].get("dimensions") == sent


async def test_service_without_base64_gets_float_requests(service: FakeOpenAI, embedder: Make) -> None:
    service.knows_base64 = False
    client = embedder()

    first, second = await client.embed(["a"]), await client.embed(["b"])

    assert (first, second) == ([embedding_of("a", 8)], [embedding_of("b", 8)])
    assert [body["encoding_format"] for body in service.bodies] == ["base64", "float", "float"]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
async def test_transient_failures_are_retried(service: FakeOpenAI, embedder: Make, status: int) -> None:
    service.faults = [failure(status), failure(status)]

    assert await embedder().embed(["a"]) == [embedding_of("a", 8)]


async def test_retry_after_is_awaited(service: FakeOpenAI, embedder: Make) -> None:
    service.faults = [failure(429, retry_after="0.3")]
    started = time.monotonic()

    await embedder().embed(["a"])

    assert time.monotonic() - started >= 0.3


async def test_retry_after_beyond_timeout_is_passed_on(service: FakeOpenAI, embedder: Make) -> None:
    service.faults = [failure(429, retry_after="60")]
    limit = Patience(2)

    with pytest.raises(EmbedderUnavailable, match="answered 429") as raised:
        await embedder().embed(["a"])

    assert raised.value.retry_after_s == 60
    assert not limit.is_over


async def test_lasting_failures_end_within_the_timeout(service: FakeOpenAI, embedder: Make) -> None:
    service.faults = [failure(500)] * 100
    limit = Patience(2)

    with pytest.raises(EmbedderUnavailable, match="answered 500"):
        await embedder(timeout_s=1).embed(["a"])

    assert not limit.is_over
    assert len(service.bodies) <= 5


async def test_unreachable_service_is_unavailable(embedder: Make) -> None:
    with pytest.raises(EmbedderUnavailable, match="cannot be reached"):
        await embedder(base_url="http://127.0.0.1:9/v1", timeout_s=0.5).embed(["a"])


@pytest.mark.parametrize(
    ("status", "way_out"), [(401, "secretRef"), (403, "has no access to model"), (404, "model ('m') or baseURL")]
)
async def test_permanent_refusals_name_the_setting(
    service: FakeOpenAI, embedder: Make, status: int, way_out: str
) -> None:
    service.faults = [failure(status)]

    with pytest.raises(SpecInvalid) as raised:
        await embedder().embed(["a"])

    assert way_out in str(raised.value)
    assert len(service.bodies) == 1


async def test_base64_is_kept_after_a_success(service: FakeOpenAI, embedder: Make) -> None:
    client = embedder()
    await client.embed(["a"])
    service.faults = [failure(400)]

    with pytest.raises(RequestInvalid, match="rejected the text"):
        await client.embed(["b"])

    assert [body["encoding_format"] for body in service.bodies] == ["base64", "base64"]


async def test_refused_text_is_the_callers_error(service: FakeOpenAI, embedder: Make) -> None:
    service.faults = [failure(400) for _ in range(2)]

    with pytest.raises(
        RequestInvalid, match=r"text: the embedding service rejected the text \(400 test\): it is probably longer"
    ):
        await embedder().embed(["a"])


async def test_error_does_not_quote_the_service(service: FakeOpenAI, embedder: Make) -> None:
    """The message of the service may contain the text."""

    service.faults = [failure(400, "input 'my PIN is 4711' is too long") for _ in range(2)]

    with pytest.raises(RequestInvalid) as raised:
        await embedder().embed(["my PIN is 4711"])

    assert "PIN" not in str(raised.value)


async def test_refused_text_does_not_disable_base64(service: FakeOpenAI, embedder: Make) -> None:
    client = embedder()
    service.faults = [failure(400, "maximum context length is 8192 tokens") for _ in range(2)]
    with pytest.raises(RequestInvalid):
        await client.embed(["a"])

    await client.embed(["b"])

    assert [body["encoding_format"] for body in service.bodies] == ["base64", "float", "base64"]


async def test_other_size_than_declared_is_refused(service: FakeOpenAI, embedder: Make) -> None:
    with pytest.raises(SpecInvalid, match="returns 8 dimensions, but the object declares 16") as raised:
        await embedder(dimensions=16).embed(["a"])

    assert raised.value.reason == "EmbeddingSizeMismatch"


ROW = {"object": "embedding", "index": 0}


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("<html>welcome</html>"),
        JSONResponse({"detail": "hello"}),
        JSONResponse({"object": "list", "data": [], "model": "m"}),
        JSONResponse({"object": "list", "data": [ROW | {"embedding": "%%%"}], "model": "m"}),
        JSONResponse({"object": "list", "data": [ROW | {"embedding": ["a"] * 8}], "model": "m"}),
        JSONResponse({"object": "list", "data": [{"embedding": [0.1] * 8}] * 2, "model": "m"}),
    ],
    ids=["page", "other object", "empty", "bad base64", "words", "two for one"],
)
async def test_response_without_embeddings_is_refused(
    service: FakeOpenAI, embedder: Make, answer: JSONResponse
) -> None:
    service.faults = [answer]

    with pytest.raises(SpecInvalid):
        await embedder().embed(["a"])


def packed(*last: float) -> str:
    return base64.b64encode(array("f", [0.0] * (8 - len(last)) + list(last)).tobytes()).decode()


@pytest.mark.parametrize(
    ("embedding", "fault"),
    [
        (f'"{packed()}"', "all zeros"),
        (f'"{packed(float("inf"))}"', "not finite"),
        (f'"{packed(float("nan"))}"', "not finite"),
        ("[0, 0, 0, 0, 0, 0, 0, 0.0]", "all zeros"),
        ("[0, 0, 0, 0, 0, 0, 0, 1e-45]", "all zeros"),
        ("[0, 0, 0, 0, 0, 0, 1, 3.5e38]", "not within float32"),
        ("[1e308, 1e308, 1e308, 1e308, 1e308, 1e308, 1e308, 1e308]", "not within float32"),
    ],
)
async def test_unusable_vectors_are_retried_then_refused(
    service: FakeOpenAI, embedder: Make, embedding: str, fault: str
) -> None:
    text = f'{{"object": "list", "data": [{{"index": 0, "embedding": {embedding}}}]}}'
    service.faults = [PlainTextResponse(text, media_type="application/json")] * 5

    with pytest.raises(EmbedderOutputInvalid, match=rf"embedding service http\S+ answered .*{fault}"):
        await embedder().embed(["a"])

    assert len(service.bodies) == 5


async def test_usable_vector_after_zeros_is_accepted(service: FakeOpenAI, embedder: Make) -> None:
    service.faults = [JSONResponse({"object": "list", "data": [ROW | {"embedding": [0.0] * 8}], "model": "m"})]

    assert await embedder().embed(["a"]) == [embedding_of("a", 8)]


ERROR_BODIES = [{"error": {"message": "overloaded"}}, {"error": "busy"}, {"object": "error", "message": "CUDA"}]


@pytest.mark.parametrize("body", ERROR_BODIES, ids=str)
async def test_error_with_status_200_is_retried(service: FakeOpenAI, embedder: Make, body: Any) -> None:
    service.faults = [JSONResponse(body), JSONResponse(body)]

    assert await embedder().embed(["a"]) == [embedding_of("a", 8)]


async def test_lasting_error_with_status_200_is_named(service: FakeOpenAI, embedder: Make) -> None:
    service.faults = [JSONResponse(ERROR_BODIES[0])] * 5

    with pytest.raises(EmbedderFailed, match="answered 200 with an error") as raised:
        await embedder().embed(["a"])

    assert "overloaded" not in str(raised.value)


async def test_failing_text_fails_alone(service: FakeOpenAI, embedder: Make) -> None:
    service.fails_on = "long"

    embedded = await embed_each(embedder(batch_size=16), ["a", "b", "long", *map(str, range(13))])

    assert isinstance(embedded.pop("long"), EmbedderFailed)
    assert embedded == {text: embedding_of(text, 8) for text in embedded}
    assert len(embedded) == 15


def test_openai_needs_a_key() -> None:
    with pytest.raises(SpecInvalid, match="OPENAI_API_KEY"):
        OpenAIEmbedder(OpenAIOptions(model="m", dimensions=8))


async def test_used_tokens_are_reported(service: FakeOpenAI, url: str) -> None:
    reported: list[int] = []
    options = OpenAIOptions(model="m", dimensions=8, api_key="k", base_url=url, batch_size=2)
    embedder = OpenAIEmbedder(options, on_used=reported.append)
    service.usage = {"prompt_tokens": 7, "total_tokens": 7}

    await embedder.embed(["a", "b", "c"])
    await embedder.aclose()

    assert reported == [7, 7]


@pytest.mark.parametrize("usage", [None, {}, [], *({"total_tokens": count} for count in ("7", -1, True, 7.5, 10**9))])
async def test_invalid_token_count_is_ignored(service: FakeOpenAI, url: str, usage: Any) -> None:
    reported: list[int] = []
    options = OpenAIOptions(model="m", dimensions=8, api_key="k", base_url=url)
    embedder = OpenAIEmbedder(options, on_used=reported.append)
    service.usage = usage

    vectors = await embedder.embed(["a"])
    await embedder.aclose()

    assert (len(vectors), reported) == (1, [])
