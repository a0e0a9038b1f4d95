"""A small OpenAI embeddings service for tests: real HTTP, faults on demand."""

import base64
import hashlib
import struct
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route


@dataclass
class FakeOpenAI:
    """What the service will answer, and what it was asked.

    Attributes:
        faults: answers to give before working again, one a request.
        dimensions: length of the vectors when the request does not say.
    """

    dimensions: int = 8
    faults: list[Response] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    knows_base64: bool = True
    is_reversed: bool = False

    def app(self) -> Starlette:
        """Return the ASGI application."""
        return Starlette(routes=[Route("/v1/embeddings", self._embed, methods=["POST"])])

    async def _embed(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        if self.faults:
            return self.faults.pop(0)
        is_base64 = body.get("encoding_format") == "base64"
        if is_base64 and not self.knows_base64:
            return failure(400, "unknown value for encoding_format")
        size = body.get("dimensions") or self.dimensions
        rows = [
            {"object": "embedding", "index": index, "embedding": _encoded(vector_of(text, size), is_base64)}
            for index, text in enumerate(body["input"])
        ]
        usage = {"prompt_tokens": 1, "total_tokens": 1}
        data = rows[::-1] if self.is_reversed else rows
        return JSONResponse({"object": "list", "data": data, "model": body["model"], "usage": usage})


def vector_of(text: str, size: int) -> list[float]:
    """Return the vector that the service gives for a text."""
    digest = hashlib.sha256(text.encode()).digest()
    return [digest[place % 32] / 256 for place in range(size)]


def failure(status: int, message: str = "injected", **headers: str) -> Response:
    """Return an error answer as OpenAI words it; header names with underscores."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return JSONResponse({"error": {"message": message, "type": "test"}}, status, headers=named)


def _encoded(vector: list[float], is_base64: bool) -> Any:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if is_base64 else vector
