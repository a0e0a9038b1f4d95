"""Embeddings of any OpenAI-compatible service: batched, retried within a time limit, size checked."""

import asyncio
import base64
import binascii
import random
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import openai

from agentmemory_operator.errors import AgentMemoryError, EmbedderUnavailable, FieldError, RequestInvalid, SpecInvalid
from agentmemory_operator.ports import Vector

OPENAI_URL = "https://api.openai.com/v1"
# The client insists on a key; services of one's own often want none.
NO_KEY = "none"
MAX_ATTEMPTS = 5
MAX_DELAY_S = 8.0
# Only these families can be asked for fewer numbers; others refuse the parameter.
SHORTENABLE = ("text-embedding-3", "gemini-embedding")

_RETRIED = (408, 409, 429)

Encoding = Literal["base64", "float"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions:
    """How to reach the service and what to ask it for.

    Attributes:
        timeout_s: for one batch, retries and waits included.
        first_delay_s: upper bound of the first wait; doubles with each attempt, up to 8 s.
    """

    model: str
    dimensions: int
    api_key: str | None = None
    base_url: str | None = None
    batch_size: int = 64
    timeout_s: float = 20
    first_delay_s: float = 0.5


class OpenAIEmbedder:
    """Embeds through `POST {base_url}/embeddings`."""

    def __init__(self, options: OpenAIOptions, *, jitter: Callable[[], float] = random.random) -> None:
        if not options.api_key and not options.base_url:
            message = (
                "spec.embedding.secretRef: openai needs a key; name a Secret, or set OPENAI_API_KEY in development"
            )
            raise SpecInvalid("InvalidSpec", message)
        self._options = options
        self._jitter = jitter
        # What the service was seen to take; None until then.
        self._encoding: Encoding | None = None
        self._client = openai.AsyncOpenAI(
            api_key=options.api_key or NO_KEY, base_url=options.base_url or OPENAI_URL, max_retries=0
        )

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._options.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """Return one vector a text, in order.

        Raises:
            RequestInvalid: the service refuses a text, mostly for its length.
        """
        size = self._options.batch_size
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        return [vector for batch in batches for vector in await self._embed_batch(batch)]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.close()

    async def _embed_batch(self, texts: list[str]) -> list[Vector]:
        deadline = time.monotonic() + self._options.timeout_s
        attempt, encoding = 1, self._encoding or "base64"
        while True:
            try:
                answer = await self._request(texts, encoding, deadline=deadline)
                vectors = self._vectors(answer, expected=len(texts))
                self._encoding = encoding
                return vectors
            except openai.OpenAIError as exc:
                if encoding == "base64" and self._may_lack_base64(exc):
                    encoding = "float"
                    continue
                refusal = self._refusal(exc)
                delay = self._delay_s(exc, attempt)
                if not isinstance(refusal, EmbedderUnavailable) or attempt >= MAX_ATTEMPTS:
                    raise refusal from exc
                if time.monotonic() + delay >= deadline:
                    raise EmbedderUnavailable(str(refusal), retry_after_s=max(delay, 1.0)) from exc
            await asyncio.sleep(delay)
            attempt += 1

    async def _request(self, texts: list[str], encoding: Encoding, *, deadline: float) -> Any:
        options = self._options
        # A gateway may put its own name for the provider before the model's.
        is_shortenable = options.model.rpartition("/")[2].startswith(SHORTENABLE)
        shortened = options.dimensions if is_shortenable else openai.omit
        return await self._client.embeddings.create(
            model=options.model,
            input=texts,
            dimensions=shortened,
            encoding_format=encoding,
            timeout=max(deadline - time.monotonic(), 0.05),
        )

    def _may_lack_base64(self, exc: openai.OpenAIError) -> bool:
        """Tell whether to ask again for plain numbers: some services know no base64, and not all say what they miss.

        Only their taking the same texts then shows that it was this.
        """
        return self._encoding is None and isinstance(exc, openai.APIStatusError) and exc.status_code in (400, 422)

    def _delay_s(self, exc: openai.OpenAIError, attempt: int) -> float:
        asked = _retry_after_s(exc)
        if asked is not None:
            return asked
        ceiling = min(self._options.first_delay_s * 2.0 ** (attempt - 1), MAX_DELAY_S)
        return ceiling * (0.5 + self._jitter() / 2)

    def _refusal(self, exc: openai.OpenAIError) -> AgentMemoryError:
        where = self._options.base_url or OPENAI_URL
        if not isinstance(exc, openai.APIStatusError):
            return EmbedderUnavailable(f"embedding service {where} cannot be reached: {type(exc).__name__}")
        status, model = exc.status_code, self._options.model
        if status in _RETRIED or status >= 500:
            wait = max(_retry_after_s(exc) or 1.0, 1.0)
            return EmbedderUnavailable(f"embedding service {where} answered {status}", retry_after_s=wait)
        words = _words_of(exc)
        if status == 400 and "api key" in words.lower():
            status = 401  # as Gemini has it
        if status in (400, 413, 422):
            return RequestInvalid([FieldError("text", f"the embedding service refused it ({status}: {words})")])
        ways = {401: "correct the key in spec.embedding.secretRef", 403: f"the key may not use model {model!r}"}
        way = ways.get(status, f"correct spec.embedding.model ({model!r}) or baseURL")
        return SpecInvalid("InvalidSpec", f"embedding service {where} answered {status}: {way}")

    def _vectors(self, answer: Any, *, expected: int) -> list[Vector]:
        rows = getattr(answer, "data", None)
        if not isinstance(rows, list) or len(rows) != expected:
            raise self._no_embeddings(f"no list of {expected} embeddings")
        try:
            # Gemini leaves an index of 0 out.
            places = [
                place if (index := getattr(row, "index", None)) is None else index for place, row in enumerate(rows)
            ]
            ordered = sorted(zip(places, rows, strict=True), key=lambda placed: int(placed[0]))
            vectors = [_numbers(row.embedding) for _, row in ordered]
        except (AttributeError, TypeError, ValueError, binascii.Error) as exc:
            raise self._no_embeddings("rows that cannot be read") from exc
        for vector in vectors:
            self._check(vector)
        return vectors

    def _check(self, vector: Vector) -> None:
        size = self._options.dimensions
        if len(vector) != size:
            message = (
                f"spec.embedding.dimensions: model {self._options.model!r} gives {len(vector)}, declared are {size}"
            )
            raise SpecInvalid("EmbeddingSizeMismatch", message)
        if not all(map(isfinite, vector)):
            raise self._no_embeddings("numbers that are not finite")

    def _no_embeddings(self, what: str) -> SpecInvalid:
        where = self._options.base_url or OPENAI_URL
        return SpecInvalid("InvalidSpec", f"embedding service {where} answered {what}: correct baseURL or model")


def _numbers(embedding: Any) -> Vector:
    if isinstance(embedding, str):
        return array("f", base64.b64decode(embedding)).tolist()
    return [float(number) for number in embedding]


def _retry_after_s(exc: openai.OpenAIError) -> float | None:
    """Return the wait that the service asks for, in seconds; a date counts as no wish."""
    header = exc.response.headers.get("retry-after") if isinstance(exc, openai.APIStatusError) else None
    try:
        wait = float(header) if header else None
    except ValueError:
        return None
    return wait if wait is not None and 0 <= wait < float("inf") else None


def _words_of(exc: openai.APIStatusError) -> str:
    """Return the service's own words, at most 200 characters."""
    body: Any = exc.body
    # Gemini answers a list of one error, which the client library does not open.
    if isinstance(body, list) and body and isinstance(body[0], dict):
        body = body[0].get("error")
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or "no reason given")[:200]
