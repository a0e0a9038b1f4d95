"""Rerank services over real HTTP, in the forms of four of them. Texts later in the alphabet score higher."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.fault_injection import Plantable, record_effect

Json = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """Form of one service.

    Attributes:
        path: Path of its endpoint.
        texts: Request field with the texts.
        allowed: All request fields that it accepts.
        render: Builds the response from texts and rows of index and score, best first.
    """

    path: str
    texts: str
    allowed: frozenset[str]
    render: Callable[[list[str], list[tuple[int, float]]], Any]


def _results(rows: list[tuple[int, float]], **more: Callable[[int], Any]) -> list[Json]:
    return [
        {"index": index, "relevance_score": score} | {name: make(index) for name, make in more.items()}
        for index, score in rows
    ]


_COHERE = frozenset({"model", "query", "documents", "top_n", "max_tokens_per_doc"})
SHAPES: Mapping[str, Shape] = {
    "tei": Shape(
        "/rerank",
        "texts",
        frozenset({"query", "texts", "truncate", "truncation_direction", "raw_scores", "return_text"}),
        lambda texts, rows: [{"index": index, "score": score} for index, score in rows],
    ),
    "jina": Shape(
        "/v1/rerank",
        "documents",
        frozenset({"model", "query", "documents", "top_n", "return_documents"}),
        lambda texts, rows: {
            "model": "m",
            "usage": {"total_tokens": 9},
            "results": _results(rows, document=lambda index: {"text": texts[index]}),
        },
    ),
    "cohere": Shape(
        "/v2/rerank", "documents", _COHERE, lambda texts, rows: {"id": "1", "results": _results(rows), "meta": {}}
    ),
    "vllm": Shape(
        "/rerank",
        "documents",
        _COHERE | {"truncate_prompt_tokens", "additional_data", "priority"},
        lambda texts, rows: {
            "id": "rerank-1",
            "model": "m",
            "usage": {"prompt_tokens": 9, "total_tokens": 9},
            "results": _results(rows, document=lambda index: {"text": texts[index], "multi_modal": None}),
        },
    ),
}


@dataclass
class FakeRerankService(Plantable):
    """Rerank service with every endpoint of `SHAPES`. It records the requests that it accepts, and all keys.

    Attributes:
        faults: Responses for the next requests, one each, before normal operation.
        shape: Form of the endpoint; requests of other forms get 422.
    """

    PLANTABLE = ("faults",)

    shape: str = "vllm"
    faults: list[Response] = field(default_factory=list)
    bodies: list[Json] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        paths = {shape.path for shape in SHAPES.values()}
        return Starlette(routes=[Route(path, self._rerank, methods=["POST"]) for path in paths])

    @property
    def path(self) -> str:
        return SHAPES[self.shape].path

    async def _rerank(self, request: Request) -> Response:
        body, shape = await request.json(), SHAPES[self.shape]
        self.keys.append(request.headers.get("authorization", ""))
        if self.faults:
            record_effect(self, "faults")
            return self.faults.pop(0)
        if shape.path != request.url.path:
            return Response(status_code=404)
        if shape.texts not in body or not body.keys() <= shape.allowed:
            return JSONResponse({"error": f"unknown form: {body}"}, 422)
        self.bodies.append(body)
        texts = body[shape.texts]
        rows = sorted(enumerate(float(ord(text[0])) for text in texts), key=lambda row: -row[1])
        return JSONResponse(shape.render(texts, rows))
