"""A scripted language model: OpenAI's chat completions over real HTTP, with valid, invalid or missing responses.

A script extracts the rows between the marks in the prompt, like a model. The test defines the response to them.
"""

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.fault_injection import Plantable, record_effect
from tests.support.web.services import failure

Row = dict[str, Any]
Answer = Callable[[list[Row]], Any]
"""Returns the response to the rows in the material."""

_MATERIAL = re.compile(r"<material (\w+)>\n(.*)\n</material \1>", re.DOTALL)
# Longer than any test waits.
HANGS_S = 3600.0


@dataclass
class ScriptedModel(Plantable):
    """A model service with scripted responses. It records the requests.

    Attributes:
        faults: Responses for the next requests, one each, before normal operation.
        answers: Responses to the rows by mode: perfect, lazy, lying or injecting.
        mode: One of those, or a failure: nonsense is not JSON, hanging does not respond, and overflowing is truncated
            at the token limit.
        usage: Token usage in the responses.
        refuses: Request fields that it rejects as unknown.
    """

    PLANTABLE = ("faults",)

    mode: str = "perfect"
    answers: Mapping[str, Answer] = field(default_factory=dict)
    faults: list[Response] = field(default_factory=list)
    refuses: tuple[str, ...] = ()
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    usage: Any = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 5})

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])

    @property
    def materials(self) -> list[str]:
        """Materials of all requests, in order."""
        return [body["messages"][1]["content"] for body in self.bodies]

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("authorization", ""))
        if self.faults:
            record_effect(self, "faults")
            return self.faults.pop(0)
        if refused := [name for name in self.refuses if name in body]:
            return failure(400, f"Unsupported parameter: {refused[0]}")
        match self.mode:
            case "hanging":
                await asyncio.sleep(HANGS_S)
                return Response()
            case "nonsense":
                return self._said("Sure! Here is what I would do with them:")
            case "overflowing":
                return self._said('{"memories": [{"content": "' + "and so on " * 200, reason="length")
        rows = rows_of(body["messages"][1]["content"])
        return self._said(json.dumps(self.answers[self.mode](rows)))

    def _said(self, text: str, *, reason: str = "stop") -> Response:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return JSONResponse(
            {
                "id": "c",
                "object": "chat.completion",
                "created": 0,
                "model": "m",
                "choices": [choice],
                "usage": self.usage,
            }
        )


def rows_of(material: str) -> list[Row]:
    """Return the rows between the marks.

    Raises:
        AssertionError: If there are no marks, or more than one pair.
    """
    found = _MATERIAL.fullmatch(material)
    assert found, "no material"
    assert material.count("<") == 2, "a mark within the material"
    rows: list[Row] = json.loads(found[2])
    return rows
