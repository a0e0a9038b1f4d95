"""Cross-encoders of a service, through the rerank endpoint of Text Embeddings Inference (TEI), Jina, Cohere or vLLM.

| service | request, besides `query` | row of the response | rows |
|---|---|---|---|
| Jina, Cohere, vLLM | `documents`, `model`, `top_n` | `index`, `relevance_score`, perhaps the text | in `results` |
| TEI | `texts`, `truncate` | `index`, `score` | the response |

Until the first success, a request that is refused with 400 or 422 is repeated in the other form. The form of the first
success is kept.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

import aiohttp
import orjson
from yarl import URL

from agentmemory_operator.adapters.http.capped_body import AnswerTooLarge, read_capped
from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress
from agentmemory_operator.adapters.http.service_session import build_service_session
from agentmemory_operator.connections.guarded_reranker import FIELD, RerankRequestRefused
from agentmemory_operator.errors import AgentMemoryError, RerankerUnavailable, SpecInvalid

# Length to which texts are cut, as for the local models.
MAX_TEXT_CHARS = 2_000
# Size limits of a response: per text, because some services return the texts, with up to 6 bytes per character; and for
# the rest.
MAX_ROW_BYTES, MAX_OVERHEAD_BYTES = 6 * MAX_TEXT_CHARS + 512, 64 << 10
OK = 200
_UNKNOWN_FORM, _REQUEST_REFUSED = (400, 422), (400, 413, 422)
_REMEDIES = {
    400: "it rejects the request: correct model, or lower candidates",
    401: "correct the key in secretRef",
    403: "the key has no access to the model",
    404: "correct url or model",
    405: "correct url",
    413: "lower candidates",
    422: "it rejects the request: correct model, or lower candidates",
}

Form = Callable[[str, str, Sequence[str]], Mapping[str, Any]]
FORMS: tuple[Form, ...] = (
    lambda model, query, texts: {"model": model, "query": query, "documents": texts, "top_n": len(texts)},
    lambda model, query, texts: {"query": query, "texts": texts, "truncate": True},
)
"""Builders of a request from model, query and texts."""


class HttpReranker:
    """Implements ports.Reranker with a service. It has no time limit of its own.

    Args:
        url: Complete address of the endpoint.
        api_key: None for a service without authentication.
        egress: Policy for outgoing connections; a call to a forbidden host raises SpecInvalid.
    """

    def __init__(self, url: str, *, api_key: str | None = None, egress: Egress = DEFAULT_EGRESS) -> None:
        self._url = url
        self._api_key = api_key
        self._host = build_service_session(egress, url, None, field=f"{FIELD}.url")
        # Form that the service has accepted; None before the first success.
        self._form: Form | None = None

    def with_key(self, api_key: str) -> "HttpReranker":
        """Return the same reranker with another key. Both use the same connections."""
        reranker = copy(self)
        reranker._api_key = api_key
        return reranker

    async def rerank(self, model: str, query: str, texts: Sequence[str]) -> list[float]:
        """Score how well each text answers the query, in order. Larger is better, on the model's own scale.

        Raises:
            RerankRequestRefused: If the service rejects this request with 400, 413 or 422.
            SpecInvalid: If the service rejects key, model or URL, or redirects. Also if the key cannot be part of a
                header, or the egress policy forbids the host.
            RerankerUnavailable: If the service is unavailable, throttles, or does not return one score for each text.
        """
        cut_texts = [text[:MAX_TEXT_CHARS] for text in texts]
        forms, status, content = (self._form,) if self._form else FORMS, 0, b""
        for form in forms:
            status, content = await self._post(form(model, query[:MAX_TEXT_CHARS], cut_texts), len(texts))
            if status == OK:
                numbers = self._numbers(content, len(texts))
                self._form = form
                return numbers
            if status not in _UNKNOWN_FORM:
                break
        raise self._refusal(status)

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._host.close()

    async def _post(self, body: Mapping[str, Any], count: int) -> tuple[int, bytes]:
        """Return the status and, if it is 200, the body of the response."""
        url, max_bytes = URL(self._url, encoded=True), MAX_OVERHEAD_BYTES + count * MAX_ROW_BYTES
        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else None
        try:
            async with await self._host.request("POST", url, data=orjson.dumps(body), headers=headers) as response:
                return response.status, await read_capped(response, max_bytes) if response.status == OK else b""
        except AnswerTooLarge as exc:
            raise RerankerUnavailable(f"{self._where}: {exc}") from None
        except (aiohttp.ClientError, OSError) as exc:
            raise RerankerUnavailable(f"{self._where} cannot be reached: {type(exc).__name__}") from None
        except ValueError:
            message = f"{FIELD}.secretRef: the key cannot be sent as a header: store it as one line"
            raise SpecInvalid("InvalidSpec", message) from None

    def _refusal(self, status: int) -> AgentMemoryError:
        message = f"{self._where} answered {status}"
        if 300 <= status < 400:
            return SpecInvalid("InvalidSpec", f"{message}: it redirects, which is not followed: correct url")
        if remedy := _REMEDIES.get(status):
            refusal = RerankRequestRefused if status in _REQUEST_REFUSED else SpecInvalid
            return refusal("InvalidSpec", f"{message}: {remedy}")
        return RerankerUnavailable(message)

    def _numbers(self, content: bytes, count: int) -> list[float]:
        """Return the scores of a response in the order of the texts, or raise RerankerUnavailable."""
        try:
            document = orjson.loads(content)
            rows = document["results"] if isinstance(document, dict) else document
            numbers = {_index(row): _score(row) for row in rows}
        except (KeyError, TypeError, ValueError):
            raise RerankerUnavailable(f"{self._where} answered no list of scores") from None
        if len(rows) != count or sorted(numbers) != list(range(count)):
            raise RerankerUnavailable(f"{self._where} did not answer one score for each text")
        if not all(map(math.isfinite, numbers.values())):
            raise RerankerUnavailable(f"{self._where} answered a value that is not a number")
        return [numbers[index] for index in range(count)]

    @property
    def _where(self) -> str:
        return f"reranker {self._url}"


def _score(row: Mapping[str, Any]) -> float:
    return float(row["relevance_score"] if "relevance_score" in row else row["score"])


def _index(row: Mapping[str, Any]) -> int:
    index = row["index"]
    if isinstance(index, bool) or not isinstance(index, int):
        raise TypeError("no index")
    return index
