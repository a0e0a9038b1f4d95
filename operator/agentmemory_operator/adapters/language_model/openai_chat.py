"""Language models of any OpenAI-compatible service, through `POST {base_url}/chat/completions`.

Services differ in the parameters they accept. Until the first success, a request that is rejected with 400 or 422 is
repeated with the next of `FORMS`. The form of the first success is kept.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

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
from agentmemory_operator.consolidation.rules.model_json import parse_answer
from agentmemory_operator.consolidation.rules.schema_fit import SchemaMismatch
from agentmemory_operator.errors import AgentMemoryError, ModelOutputInvalid, ModelUnavailable, SpecInvalid
from agentmemory_operator.ports.models import Completion
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL

BLOCK = "spec.consolidation.model"
MAX_ATTEMPTS = 3
FIRST_DELAY_S = 0.5
# Size limit of a response apart from the answer itself: reasoning text, log probabilities.
MAX_OVERHEAD_BYTES = MIB
# Size limit per token of the answer, as JSON.
MAX_TOKEN_BYTES = 64
# Bytes per token for estimates. Below the usual average, so that an estimate is rather too high.
MIN_TOKEN_BYTES = 3
# Maximum number of tokens that a request contains in addition to its texts.
MAX_MARKER_TOKENS = 256

Form = Mapping[str, Any]
_JSON = {"response_format": {"type": "json_object"}}
FORMS: tuple[tuple[str, Form], ...] = (
    ("max_tokens", {**_JSON, "temperature": 0}),
    # OpenAI's newer models, which accept no temperature.
    ("max_completion_tokens", _JSON),
    # Servers without `response_format`.
    ("max_tokens", {"temperature": 0}),
)
"""Forms of a request: each has the parameter for the token limit, and other parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Address of the service, and parameters of its calls.

    Attributes:
        api_key: None for a service without authentication.
        base_url: None is OpenAI's own URL.
        timeout_s: Time limit for one answer, including retries and waits.
        first_delay_s: Upper bound of the first wait; doubles with each attempt, up to 8 s.
    """

    model: str
    api_key: str | None = None
    base_url: str | None = None
    timeout_s: float = 120
    first_delay_s: float = FIRST_DELAY_S


class OpenAIChat:
    """Implements ports.LanguageModel with a service that is compatible with OpenAI.

    Args:
        options: Address of the service, and parameters.
        jitter: Returns a random number from 0 to 1.
        egress: Policy for outgoing connections; a call to a forbidden host raises SpecInvalid.

    Raises:
        SpecInvalid: If `options` has neither a key nor a base URL.
    """

    def __init__(
        self, options: ChatOptions, *, jitter: Callable[[], float] = random.random, egress: Egress = DEFAULT_EGRESS
    ) -> None:
        if not options.api_key and not options.base_url:
            message = f"{BLOCK}.secretRef: OpenAI needs a key: name a Secret, or set OPENAI_API_KEY in development"
            raise SpecInvalid("InvalidSpec", message)
        self._options = options
        self._jitter = jitter
        # Index of the form that the service has accepted; None before the first success.
        self._form: int | None = None
        self._where = (options.base_url or OPENAI_URL).rstrip("/")
        self._host = build_service_session(egress, self._where, options.api_key or NO_KEY, field=f"{BLOCK}.baseURL")
        self._client = openai_client(self._host, self._where)

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """Return one answer that matches the schema.

        Until the first success, a rejected request is repeated with the next of `FORMS`.
        """
        deadline = time.monotonic() + self._options.timeout_s
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": material}]
        document = await self._answer(messages, max_tokens, deadline=deadline)
        sent_bytes = len(instructions.encode()) + len(material.encode())
        return _completion(document, schema, sent_bytes=sent_bytes, max_tokens=max_tokens)

    async def aclose(self) -> None:
        """Close the connections; a later call opens new ones."""
        await self._host.close()

    async def _answer(self, messages: list[dict[str, str]], max_tokens: int, *, deadline: float) -> Any:
        attempt, form = 1, self._form or 0
        while True:
            try:
                document = await self._request(messages, max_tokens, form=form, deadline=deadline)
                self._form = form
                return document
            except (ServiceError, openai.OpenAIError, aiohttp.ClientError, OSError) as exc:
                if self._form is None and form + 1 < len(FORMS) and _may_lack_form(exc):
                    form += 1
                    continue
                failure = self._refusal(exc)
                delay = retry_delay_s(exc, attempt, first_s=self._options.first_delay_s, jitter=self._jitter)
                if not isinstance(failure, ModelUnavailable) or attempt >= MAX_ATTEMPTS:
                    raise failure from exc
                if time.monotonic() + delay >= deadline:
                    raise ModelUnavailable(str(failure), retry_after_s=max(delay, 1.0)) from exc
            await asyncio.sleep(delay)
            attempt += 1

    async def _request(self, messages: list[dict[str, str]], max_tokens: int, *, form: int, deadline: float) -> Any:
        limit_key, parameters = FORMS[form]
        try:
            with map_service_errors(f"{BLOCK}.secretRef"):
                response = await self._client.chat.completions.with_raw_response.create(
                    model=self._options.model,
                    messages=cast(Any, messages),
                    extra_body={limit_key: max_tokens, **parameters},
                    timeout=max(deadline - time.monotonic(), 0.05),
                    extra_headers={MAX_BYTES_HEADER: str(MAX_OVERHEAD_BYTES + max_tokens * MAX_TOKEN_BYTES)},
                )
            document = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            return None
        raise_if_error(document)
        return document

    def _refusal(self, exc: Exception) -> AgentMemoryError:
        model = f"language model {self._where}"
        if isinstance(exc, AnswerTooLarge):
            return ModelOutputInvalid(f"{model}: {exc}")
        if not isinstance(exc, ServiceError):
            return ModelUnavailable(f"{model} cannot be reached: {type(exc).__name__}")
        if exc.is_transient:
            return ModelUnavailable(f"{model} answered {exc.summary}", retry_after_s=max(exc.retry_after_s or 1.0, 1.0))
        if exc.effective_status in INPUT_ERROR_STATUSES:
            details = f"{exc.status} {exc.code}".strip()
            return ModelOutputInvalid(f"{model} rejected the input ({details}): it is probably too long for the model")
        return permanent_error(exc, model, block=BLOCK, model=self._options.model)


def _may_lack_form(exc: Exception) -> bool:
    """Return whether to try another form: not all services report the unsupported parameter."""
    return isinstance(exc, ServiceError) and exc.effective_status in (400, 422)


def _completion(document: Any, schema: Mapping[str, Any], *, sent_bytes: int, max_tokens: int) -> Completion:
    """Parse a response.

    Raises:
        ModelOutputInvalid: If the output is missing, cut off or filtered, or does not match the schema.
    """
    text, reason = _content_of(document)
    tokens_in = _tokens(document, "prompt_tokens", max_plausible=sent_bytes + MAX_MARKER_TOKENS, estimate=sent_bytes)
    # Reasoning tokens can exceed the token limit of the answer, so the bound is generous.
    tokens_out = _tokens(document, "completion_tokens", max_plausible=1 << 24, estimate=len(text.encode()))
    try:
        parsed = parse_answer(_checked(text, reason), schema)
    except SchemaMismatch as mismatch:
        message = f"the language model's answer is unusable: {mismatch}"
        raise ModelOutputInvalid(message, tokens_in=tokens_in, tokens_out=tokens_out) from None
    return Completion(parsed.value, tokens_in, tokens_out, dropped=parsed.dropped)


def _checked(text: str, reason: str) -> str:
    if reason == "length":
        raise SchemaMismatch("it was cut off at the token limit")
    if reason == "content_filter":
        raise SchemaMismatch("the service's content filter blocked it")
    return text


def _content_of(document: Any) -> tuple[str, str]:
    """Return text and finish reason of the first choice; empty if there is none."""
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return "", ""
    content, reason = message.get("content"), choice.get("finish_reason")
    return (content if isinstance(content, str) else ""), (reason if isinstance(reason, str) else "")


def _tokens(document: Any, name: str, *, max_plausible: int, estimate: int) -> int:
    """Return the reported number of tokens, or an estimate from bytes if it is missing or implausible."""
    usage = document.get("usage") if isinstance(document, dict) else None
    reported = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(reported, int) and not isinstance(reported, bool) and 0 < reported <= max_plausible:
        return reported
    return max(estimate // MIN_TOKEN_BYTES, 1)
