"""Reranker of a service over real HTTP: the forms of four services, and their faults."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from agentmemory_operator.adapters.embedding.http_reranker import HttpReranker
from agentmemory_operator.adapters.http.egress import Egress
from agentmemory_operator.connections.guarded_reranker import GuardedReranker, RerankRequestRefused
from agentmemory_operator.connections.rules.egress_policy import EgressPolicy
from agentmemory_operator.errors import RerankerUnavailable, SpecInvalid
from tests.support.web.http_server import serve
from tests.support.web.rerankers import SHAPES, FakeRerankService

Make = Callable[..., HttpReranker]
DOCUMENT = "a very private text"


@pytest.fixture
async def make(rerank_service: FakeRerankService, rerank_server: tuple[FakeRerankService, str]) -> AsyncIterator[Make]:
    """Factory of rerankers of the service's endpoint; closes them afterwards."""
    rerankers: list[HttpReranker] = []

    def make(**options: Any) -> HttpReranker:
        rerankers.append(HttpReranker(rerank_server[1] + rerank_service.path, **options))
        return rerankers[-1]

    yield make
    for reranker in rerankers:
        await reranker.aclose()


@pytest.mark.parametrize("shape", SHAPES)
async def test_scores_are_in_the_order_of_texts(shape: str, rerank_service: FakeRerankService, make: Make) -> None:
    rerank_service.shape = shape
    reranker = make(api_key="k")

    first = await reranker.rerank("m", "q", ["b", "c", "a"])
    calls = len(rerank_service.keys)
    second = await reranker.rerank("m", "q", ["z", "y"])

    assert (first, second) == ([98.0, 99.0, 97.0], [122.0, 121.0])
    assert (calls, len(rerank_service.keys)) == (2 if shape == "tei" else 1, calls + 1)
    assert set(rerank_service.keys) == {"Bearer k"}
    assert {body.get("model", "m") for body in rerank_service.bodies} == {"m"}


async def test_long_texts_are_cut(rerank_service: FakeRerankService, make: Make) -> None:
    await make().rerank("m", "q" * 3_000, ["t" * 3_000])

    (body,) = rerank_service.bodies
    assert rerank_service.keys == [""], "no key, no header"
    assert (len(body["query"]), len(body["documents"][0])) == (2_000, 2_000)


def rows(*pairs: tuple[Any, Any]) -> Response:
    return JSONResponse({"results": [{"index": index, "relevance_score": score} for index, score in pairs]})


def raw(text: str) -> Response:
    return PlainTextResponse(text, media_type="application/json")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (rows((0, 1.0)), "one score for each text"),
        (rows((0, 1.0), (1, 0.5), (2, 0.1)), "one score for each text"),
        (rows((0, 1.0), (0, 0.5)), "one score for each text"),
        (rows((0, 1.0), (2, 0.5)), "one score for each text"),
        (rows((0, 1.0), (-1, 0.5)), "one score for each text"),
        (rows((0, 1.0), (True, 0.5)), "no list of scores"),
        (rows((0, 1.0), ("1", 0.5)), "no list of scores"),
        (rows((0, 1.0), (1, None)), "no list of scores"),
        (rows((0, 1.0), (1, "NaN")), "not a number"),
        (raw('{"results": [{"index": 0, "relevance_score": NaN}, {"index": 1, "relevance_score": 1}]}'), "no list"),
        (
            raw('{"results": [{"index": 0, "relevance_score": 1e999}, {"index": 1, "relevance_score": 1}]}'),
            "no list|not a number",
        ),
        (raw('{"error": "a very private text"}'), "no list of scores"),
        (raw('[["index", 0], 3]'), "no list of scores"),
        (raw("[]"), "one score for each text"),
        (raw("a very private text"), "no list of scores"),
        (raw("x" * (65 * 1024 + 2 * 12_512)), "larger than the limit"),
        (PlainTextResponse(DOCUMENT, 500), "answered 500"),
        (PlainTextResponse(DOCUMENT, 429), "answered 429"),
    ],
)
async def test_unusable_answer_is_unavailable(
    answer: Response, reason: str, rerank_service: FakeRerankService, make: Make
) -> None:
    rerank_service.faults = [answer]

    with pytest.raises(RerankerUnavailable, match=reason) as raised:
        await make().rerank("m", "what", [DOCUMENT, "b"])

    assert DOCUMENT not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize(
    ("answer", "remedy"),
    [
        (PlainTextResponse(DOCUMENT, 401), "secretRef"),
        (PlainTextResponse(DOCUMENT, 403), "no access"),
        (PlainTextResponse(DOCUMENT, 404), "url or model"),
        (PlainTextResponse(DOCUMENT, 413), "lower candidates"),
        (RedirectResponse("http://elsewhere.example/rerank"), "not followed"),
    ],
)
async def test_permanent_refusal_names_the_remedy(
    answer: Response, remedy: str, rerank_service: FakeRerankService, make: Make
) -> None:
    rerank_service.faults = [answer]

    with pytest.raises(SpecInvalid, match=remedy) as raised:
        await make().rerank("m", "what", [DOCUMENT])

    assert isinstance(raised.value, RerankRequestRefused) == (answer.status_code == 413)
    assert DOCUMENT not in str(raised.value)
    assert len(rerank_service.keys) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
async def test_refusal_that_depends_on_the_request(status: int, rerank_service: FakeRerankService, make: Make) -> None:
    reranker = make()
    await reranker.rerank("m", "q", ["a"])
    rerank_service.faults = [PlainTextResponse(DOCUMENT, status)]

    with pytest.raises(RerankRequestRefused, match="lower candidates") as raised:
        await reranker.rerank("m", "what", [DOCUMENT])

    assert DOCUMENT not in str(raised.value)
    assert len(rerank_service.keys) == 2


async def test_both_forms_are_tried_until_one_is_accepted(rerank_service: FakeRerankService, make: Make) -> None:
    rerank_service.faults = [PlainTextResponse(DOCUMENT, 422), PlainTextResponse(DOCUMENT, 400)]
    reranker = make()

    with pytest.raises(SpecInvalid, match="answered 400: it rejects the request"):
        await reranker.rerank("m", "q", ["a"])

    assert await reranker.rerank("m", "q", ["a"]) == [97.0]


async def test_refusal_in_the_accepted_form_is_not_repeated(rerank_service: FakeRerankService, make: Make) -> None:
    reranker = make()
    await reranker.rerank("m", "q", ["a"])
    rerank_service.faults = [PlainTextResponse("", 422)]

    with pytest.raises(SpecInvalid, match="lower candidates"):
        await reranker.rerank("m", "q", ["a"])

    assert len(rerank_service.keys) == 2


async def test_forbidden_host_gets_no_request(rerank_service: FakeRerankService, make: Make) -> None:
    with pytest.raises(SpecInvalid, match=r"spec\.scoring\.rerank\.url"):
        await make(egress=Egress(EgressPolicy(is_in_cluster=True))).rerank("m", "q", ["a"])

    assert rerank_service.keys == []


async def test_key_of_two_lines_is_not_sent(rerank_service: FakeRerankService, make: Make) -> None:
    with pytest.raises(SpecInvalid, match="secretRef: the key cannot be sent") as raised:
        await make(api_key="two\nlines").rerank("m", "q", ["a"])

    assert "two" not in str(raised.value)
    assert rerank_service.keys == []


async def test_closed_port_is_unavailable() -> None:
    reranker = HttpReranker("http://127.0.0.1:9/rerank")

    with pytest.raises(RerankerUnavailable, match="cannot be reached"):
        await reranker.rerank("m", "q", ["a"])

    await reranker.aclose()


async def test_hanging_service_ends_at_the_time_limit() -> None:
    async def hang(request: Request) -> Response:
        await asyncio.sleep(3600)
        return Response()

    with serve(Starlette(routes=[Route("/rerank", hang, methods=["POST"])])) as url:
        service = HttpReranker(f"{url}/rerank")

        async def connect() -> HttpReranker:
            return service

        guarded = GuardedReranker(connect, timeout_s=0.1, now_s=lambda: 0.0)
        with pytest.raises(RerankerUnavailable, match="longer than 100 ms"):
            await guarded.rerank("m", "q", ["a"])
        await service.aclose()
