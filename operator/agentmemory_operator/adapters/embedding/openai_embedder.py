"""Embeddings of any OpenAI-compatible service: batched, retried within a time limit, size checked.

OpenAI's client asks, over the transport that all adapters share: it follows no redirect, and reads up to a bound.
"""

import asyncio
import base64
import binascii
import random
import re
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, cast

import aiohttp
import openai
import orjson

from agentmemory_operator import __version__
from agentmemory_operator.adapters.http.answers import MIB, AnswerTooLarge
from agentmemory_operator.adapters.http.egress import USUAL, Egress, HostSession, trust_of
from agentmemory_operator.adapters.http.httpx_transport import BASE_URL, MOST_HEADER, client_of, reason_behind
from agentmemory_operator.errors import AgentMemoryError, EmbedderUnavailable, FieldError, RequestInvalid, SpecInvalid
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL

# The client insists on a key; services of one's own often want none.
NO_KEY = "none"
FIELD = "spec.embedding.baseURL"
MAX_ATTEMPTS = 5
MAX_DELAY_S = 8.0
# Requests under way at once are bounded where they come in.
MAX_CONNECTIONS = 512
# Below the 5 s after which many servers close an idle connection.
KEEP_ALIVE_S = 4.0
# Of an answer: a number as text takes up to 22 bytes, in base64 6; what stands around a vector, and around all of them.
NUMBER_BYTES, ROW_BYTES, ANSWER_BYTES = 24, 512, 4 * MIB
MARKS = 16
# Only these families can be asked for fewer numbers; others refuse the parameter.
SHORTENABLE = ("text-embedding-3", "gemini-embedding")

_RETRIED = (408, 409, 429)
# What services call a kind of error; their sentences may quote a text.
_CODE = re.compile(r"[A-Za-z0-9_.-]{1,64}")

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


class _Refused(Exception):
    """The service answered, and not with embeddings.

    Args:
        body: of its answer, as far as the client could read it.
    """

    def __init__(self, status: int, body: Any, headers: Mapping[str, str]) -> None:
        super().__init__(str(status))
        self.status = status
        self.code, self.words = _error_of(body)
        self.retry_after_s = _retry_after_s(headers)


class OpenAIEmbedder:
    """Embeds through `POST {base_url}/embeddings`.

    Args:
        egress: says whether the service may be connected to; each call raises SpecInvalid where it may not.
        on_used: told the tokens of each answer that says them.
    """

    def __init__(
        self,
        options: OpenAIOptions,
        *,
        jitter: Callable[[], float] = random.random,
        egress: Egress = USUAL,
        on_used: Callable[[int], None] | None = None,
    ) -> None:
        if not options.api_key and not options.base_url:
            message = (
                "spec.embedding.secretRef: openai needs a key; name a Secret, or set OPENAI_API_KEY in development"
            )
            raise SpecInvalid("InvalidSpec", message)
        self._options = options
        self._jitter = jitter
        self._on_used = on_used
        # What the service was seen to take; None until then.
        self._encoding: Encoding | None = None
        self._where = (options.base_url or OPENAI_URL).rstrip("/")
        self._host = _session_of(egress, self._where, options.api_key or NO_KEY)
        self._client = openai.AsyncOpenAI(
            # The session has the key and the address.
            api_key=NO_KEY,
            base_url=BASE_URL,
            max_retries=0,
            # Takes httpx's as well as its successor's, of which alone its types know.
            http_client=cast(Any, client_of(self._host, self._where)),
        )

    @property
    def dimensions(self) -> int:
        """Length of every vector."""
        return self._options.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One vector a text, in order.

        Raises:
            RequestInvalid: the service refuses a text, mostly for its length.
            SpecInvalid: it refuses for good, gives no embeddings, or may not be connected to.
        """
        size = self._options.batch_size
        batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
        return [vector for batch in batches for vector in await self._embed_batch(batch)]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._host.close()

    async def _embed_batch(self, texts: list[str]) -> list[Vector]:
        deadline = time.monotonic() + self._options.timeout_s
        attempt, encoding = 1, self._encoding or "base64"
        while True:
            try:
                answer = await self._request(texts, encoding, deadline=deadline)
                vectors = self._vectors(answer, expected=len(texts))
                self._encoding = encoding
                self._note_tokens(answer, texts)
                return vectors
            except (_Refused, openai.OpenAIError, aiohttp.ClientError, OSError) as exc:
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
        most = ANSWER_BYTES + len(texts) * (ROW_BYTES + options.dimensions * NUMBER_BYTES)
        try:
            # Raw: the client makes an object of each row before anybody has counted them.
            answer = await self._client.embeddings.with_raw_response.create(
                model=options.model,
                input=texts,
                dimensions=options.dimensions if is_shortenable else openai.omit,
                encoding_format=encoding,
                timeout=max(deadline - time.monotonic(), 0.05),
                extra_headers={MOST_HEADER: str(most)},
            )
            return orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return None
        except openai.APIStatusError as exc:
            # Without it as the cause: its text is the service's sentence.
            raise _Refused(exc.status_code, exc.body, exc.response.headers) from None
        except openai.APIConnectionError as exc:
            reason = reason_behind(exc) or exc
        if isinstance(reason, ValueError):
            # A line's end in it, as aiohttp has it.
            message = "spec.embedding.secretRef: the key is none that can be sent: put it there as one line"
            raise SpecInvalid("InvalidSpec", message) from reason
        raise reason

    def _may_lack_base64(self, exc: Exception) -> bool:
        """Whether to ask again for plain numbers: some services know no base64, and not all say what they miss.

        Only their taking the same texts then shows that it was this.
        """
        return self._encoding is None and isinstance(exc, _Refused) and exc.status in (400, 422)

    def _delay_s(self, exc: Exception, attempt: int) -> float:
        asked = exc.retry_after_s if isinstance(exc, _Refused) else None
        if asked is not None:
            return asked
        ceiling = min(self._options.first_delay_s * 2.0 ** (attempt - 1), MAX_DELAY_S)
        return ceiling * (0.5 + self._jitter() / 2)

    def _refusal(self, exc: Exception) -> AgentMemoryError:
        where = f"embedding service {self._where}"
        if isinstance(exc, AnswerTooLarge):
            return SpecInvalid("InvalidSpec", f"{where}: {exc}: correct baseURL or model")
        if not isinstance(exc, _Refused):
            return EmbedderUnavailable(f"{where} cannot be reached: {type(exc).__name__}")
        status, model = exc.status, self._options.model
        if status in _RETRIED or status >= 500:
            return EmbedderUnavailable(f"{where} answered {status}", retry_after_s=max(exc.retry_after_s or 1.0, 1.0))
        if status == 400 and "api key" in exc.words.lower():
            status = 401  # as Gemini has it
        if status in (400, 413, 422):
            told = f"{status} {exc.code}".strip()
            return RequestInvalid([FieldError("text", f"the embedding service refused it ({told}): {_LIMITS}")])
        ways = {401: "correct the key in spec.embedding.secretRef", 403: f"the key may not use model {model!r}"}
        way = ways.get(status, f"correct spec.embedding.model ({model!r}) or baseURL")
        if 300 <= status < 400:
            way = "it leads elsewhere, which is not followed: correct baseURL"
        return SpecInvalid("InvalidSpec", f"{where} answered {status}: {way}")

    def _vectors(self, answer: Any, *, expected: int) -> list[Vector]:
        rows = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(rows, list) or len(rows) != expected:
            raise self._no_embeddings(f"no list of {expected} embeddings")
        try:
            # Gemini leaves an index of 0 out.
            places = [place if (index := row.get("index")) is None else index for place, row in enumerate(rows)]
            ordered = sorted(zip(places, rows, strict=True), key=lambda placed: int(placed[0]))
            vectors = [_numbers(row["embedding"]) for _, row in ordered]
        except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as exc:
            raise self._no_embeddings("rows that cannot be read") from exc
        for vector in vectors:
            self._check(vector)
        return vectors

    def _note_tokens(self, answer: Any, texts: Sequence[str]) -> None:
        usage = answer.get("usage")
        tokens = usage.get("total_tokens") if isinstance(usage, dict) else None
        # No service has more tokens than bytes, but for a few that mark where a text begins and ends.
        most = sum(len(text.encode()) + MARKS for text in texts)
        if self._on_used and isinstance(tokens, int) and not isinstance(tokens, bool) and 0 < tokens <= most:
            self._on_used(tokens)

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
        return SpecInvalid("InvalidSpec", f"embedding service {self._where} answered {what}: correct baseURL or model")


_LIMITS = "mostly it is longer than the model takes, or batchSize larger than the service does"


def _session_of(egress: Egress, where: str, key: str) -> HostSession:
    return HostSession(
        *(egress, where),
        field=FIELD,
        proxies=("all",),
        headers={
            "Authorization": f"Bearer {key}",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"agentmemory/{__version__}",
        },
        limit=MAX_CONNECTIONS,
        keepalive_timeout=KEEP_ALIVE_S,
        ssl=trust_of(where, None) or True,
    )


def _numbers(embedding: Any) -> Vector:
    if isinstance(embedding, str):
        return array("f", base64.b64decode(embedding)).tolist()
    return [float(number) for number in embedding]


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The wait that the service asks for, in seconds; a date counts as no wish."""
    header = headers.get("retry-after")
    try:
        wait = float(header) if header else None
    except ValueError:
        return None
    return wait if wait is not None and 0 <= wait < float("inf") else None


def _error_of(body: Any) -> tuple[str, str]:
    """What the service calls the error, and its own words, which are not for people: they may quote a text."""
    # Gemini answers a list of one error, which the client does not open.
    document = body[0] if isinstance(body, list) and body else body
    error = document.get("error", document) if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return "", ""
    codes = (error.get(name) for name in ("code", "status", "type"))
    code = next((code for code in codes if isinstance(code, str) and _CODE.fullmatch(code)), "")
    return code, str(error.get("message") or "")
