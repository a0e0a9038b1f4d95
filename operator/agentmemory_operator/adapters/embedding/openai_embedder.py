"""Embeddings of any OpenAI-compatible service: batched, retried within a timeout, and checked.

OpenAI's client runs over the transport that all adapters share. The transport follows no redirect, and limits the size
of responses.
"""

import asyncio
import base64
import binascii
import random
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp
import openai
import orjson

from agentmemory_operator.adapters.http.capped_body import MIB, AnswerTooLarge
from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress
from agentmemory_operator.adapters.http.httpx_transport import MAX_BYTES_HEADER
from agentmemory_operator.adapters.http.openai_service import (
    INPUT_ERROR_STATUSES,
    ServiceError,
    map_service_errors,
    openai_client,
    permanent_error,
    raise_if_error,
    retry_delay_s,
)
from agentmemory_operator.adapters.http.service_session import NO_KEY, build_service_session
from agentmemory_operator.agents.checks import vector_fault
from agentmemory_operator.errors import (
    AgentMemoryError,
    EmbedderFailed,
    EmbedderOutputInvalid,
    EmbedderUnavailable,
    FieldError,
    RequestInvalid,
    SpecInvalid,
)
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL

FIELD, SECRET_FIELD = "spec.embedding.baseURL", "spec.embedding.secretRef"
MAX_ATTEMPTS = 5
# Limit for a batch in which one text may cause the error: the caller retries with parts of it
# (`connections/embedders.py`).
MAX_BATCH_ATTEMPTS = 2
# Size limits of a response: per number (up to 22 bytes as text, 6 in base64), per vector, and for the rest.
MAX_NUMBER_BYTES, MAX_ROW_BYTES, MAX_OVERHEAD_BYTES = 24, 512, 4 * MIB
# Maximum number of tokens that mark the start and end of a text.
MAX_MARKER_TOKENS = 16
# The parameter `dimensions` is sent only to these model families: others may reject it.
SHORTENABLE = ("text-embedding-3", "gemini-embedding")

Encoding = Literal["base64", "float"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions:
    """Address of the service, and parameters of its calls.

    Attributes:
        dimensions: Declared length of the vectors.
        api_key: None for a service without authentication.
        base_url: None is OpenAI's own URL.
        batch_size: Maximum number of texts in one call.
        timeout_s: Time limit for one batch, including retries and waits.
        first_delay_s: Upper bound of the first wait; doubles with each attempt, up to 8 s.
    """

    model: str
    dimensions: int
    api_key: str | None = None
    base_url: str | None = None
    batch_size: int = 64
    timeout_s: float = 20
    first_delay_s: float = 0.5


class OpenAIEmbedder:
    """Embeds through `POST {base_url}/embeddings`.

    Args:
        options: Address of the service, and parameters.
        jitter: Returns a random number from 0 to 1.
        egress: Policy for outgoing connections; a call to a forbidden host raises SpecInvalid.
        on_used: Called with the number of tokens of each response that reports a plausible number. None ignores it.

    Raises:
        SpecInvalid: If `options` has neither a key nor a base URL.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        *,
        jitter: Callable[[], float] = random.random,
        egress: Egress = DEFAULT_EGRESS,
        on_used: Callable[[int], None] | None = None,
    ) -> None:
        if not options.api_key and not options.base_url:
            message = (
                "spec.embedding.secretRef: required with provider openai: name a Secret, or set OPENAI_API_KEY "
                "in development"
            )
            raise SpecInvalid("InvalidSpec", message)
        self._options = options
        self._jitter = jitter
        self._on_used = on_used
        # Encoding that the service has accepted; None before the first success.
        self._encoding: Encoding | None = None
        self._where = (options.base_url or OPENAI_URL).rstrip("/")
        self._host = build_service_session(egress, self._where, options.api_key or NO_KEY, field=FIELD)
        self._client = openai_client(self._host, self._where)

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._options.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector per text, in order.

        Raises:
            RequestInvalid: If the service rejects a text, usually because of its length.
            EmbedderUnavailable: If the service is unavailable, throttles, or returns unusable vectors, after retries.
            SpecInvalid: If the service rejects key, model or URL, or the egress policy forbids its host. Also if the
                response is too large, has no embeddings, or has vectors of another length than declared.
        """
        size = self._options.batch_size
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        return [vector for batch in batches for vector in await self._embed_batch(batch)]

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._host.close()

    async def _embed_batch(self, texts: list[str]) -> list[Vector]:
        deadline = time.monotonic() + self._options.timeout_s
        attempt, encoding = 1, self._encoding or "base64"
        while True:
            try:
                document = await self._request(texts, encoding, deadline=deadline)
                vectors = self._vectors(document, expected=len(texts))
                self._encoding = encoding
                self._note_tokens(document, texts)
                return vectors
            except (*_FAILURES, EmbedderOutputInvalid) as exc:
                if encoding == "base64" and self._may_lack_base64(exc):
                    encoding = "float"
                    continue
                failure = self._refusal(exc)
                delay = retry_delay_s(exc, attempt, first_s=self._options.first_delay_s, jitter=self._jitter)
                if not isinstance(failure, EmbedderUnavailable) or attempt >= _max_attempts(failure, texts):
                    raise failure from exc
                if time.monotonic() + delay >= deadline:
                    raise type(failure)(str(failure), retry_after_s=max(delay, 1.0)) from exc
            await asyncio.sleep(delay)
            attempt += 1

    async def _request(self, texts: list[str], encoding: Encoding, *, deadline: float) -> Any:
        options = self._options
        # With a gateway, the name of a provider may precede that of the model: `PROVIDER/MODEL`.
        is_shortenable = options.model.rpartition("/")[2].startswith(SHORTENABLE)
        max_bytes = MAX_OVERHEAD_BYTES + len(texts) * (MAX_ROW_BYTES + options.dimensions * MAX_NUMBER_BYTES)
        try:
            # Raw response: otherwise the client builds an object per row before the number of rows is checked.
            with map_service_errors(SECRET_FIELD):
                response = await self._client.embeddings.with_raw_response.create(
                    model=options.model,
                    input=texts,
                    dimensions=options.dimensions if is_shortenable else openai.omit,
                    encoding_format=encoding,
                    timeout=max(deadline - time.monotonic(), 0.05),
                    extra_headers={MAX_BYTES_HEADER: str(max_bytes)},
                )
            document = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            return None
        raise_if_error(document)
        return document

    def _may_lack_base64(self, exc: Exception) -> bool:
        """Return whether to retry with plain numbers, which is the only way to detect a service without base64.

        Not all such services report the cause.
        """
        return self._encoding is None and isinstance(exc, ServiceError) and exc.status in (400, 422)

    def _refusal(self, exc: Exception) -> AgentMemoryError:
        service = f"embedding service {self._where}"
        if isinstance(exc, EmbedderOutputInvalid):
            return exc
        if isinstance(exc, AnswerTooLarge):
            return SpecInvalid("InvalidSpec", f"{service}: {exc}: correct baseURL or model")
        if not isinstance(exc, ServiceError):
            return EmbedderUnavailable(f"{service} cannot be reached: {type(exc).__name__}")
        if exc.is_transient:
            kind = EmbedderFailed if exc.is_failure else EmbedderUnavailable
            return kind(f"{service} answered {exc.summary}", retry_after_s=max(exc.retry_after_s or 1.0, 1.0))
        if exc.effective_status in INPUT_ERROR_STATUSES:
            details = f"{exc.status} {exc.code}".strip()
            return RequestInvalid(
                [FieldError("text", f"the embedding service rejected the text ({details}): {_LIMITS}")]
            )
        return permanent_error(exc, service, block="spec.embedding", model=self._options.model)

    def _vectors(self, document: Any, *, expected: int) -> list[Vector]:
        rows = document.get("data") if isinstance(document, dict) else None
        if not isinstance(rows, list) or len(rows) != expected:
            raise self._no_embeddings(f"no list of {expected} embeddings")
        try:
            # Gemini omits an index of 0.
            indexes = [position if (index := row.get("index")) is None else index for position, row in enumerate(rows)]
            ordered = sorted(zip(indexes, rows, strict=True), key=lambda pair: int(pair[0]))
            vectors = [_numbers(row["embedding"]) for _, row in ordered]
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as exc:
            raise self._no_embeddings("rows that cannot be read") from exc
        for vector in vectors:
            self._check(vector)
        return vectors

    def _note_tokens(self, document: Any, texts: Sequence[str]) -> None:
        usage = document.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
        # Plausibility: no text has more tokens than bytes, except for a few markers.
        max_tokens = sum(len(text.encode()) + MAX_MARKER_TOKENS for text in texts)
        if self._on_used and isinstance(tokens, int) and not isinstance(tokens, bool) and 0 < tokens <= max_tokens:
            self._on_used(tokens)

    def _check(self, vector: Vector) -> None:
        size = self._options.dimensions
        if len(vector) != size:
            message = (
                f"spec.embedding.dimensions: model {self._options.model!r} returns {len(vector)} dimensions, "
                f"but the object declares {size}"
            )
            raise SpecInvalid("EmbeddingSizeMismatch", message)
        if fault := vector_fault(vector):
            message = f"embedding service {self._where} answered a vector that {fault}"
            raise EmbedderOutputInvalid(message, retry_after_s=1.0)

    def _no_embeddings(self, text: str) -> SpecInvalid:
        return SpecInvalid("InvalidSpec", f"embedding service {self._where} answered {text}: correct baseURL or model")


_FAILURES = (ServiceError, openai.OpenAIError, aiohttp.ClientError, OSError)
_LIMITS = "it is probably longer than the model allows, or batchSize is larger than the service allows"


def _max_attempts(failure: EmbedderUnavailable, texts: Sequence[str]) -> int:
    return MAX_BATCH_ATTEMPTS if failure.may_depend_on_text and len(texts) > 1 else MAX_ATTEMPTS


def _numbers(embedding: Any) -> Vector:
    if isinstance(embedding, str):
        return array("f", base64.b64decode(embedding)).tolist()
    return [float(number) for number in embedding]
