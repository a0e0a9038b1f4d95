"""Language models of any OpenAI-compatible service, through `POST {base_url}/chat/completions`."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import openai
import orjson

from agentmemory_operator.adapters.http.answers import MIB, AnswerTooLarge
from agentmemory_operator.adapters.http.egress import USUAL, Egress
from agentmemory_operator.adapters.http.httpx_transport import MOST_HEADER
from agentmemory_operator.adapters.http.openai_service import (
    ABOUT_TEXTS,
    ServiceRefused,
    delay_s,
    openai_client,
    raise_if_error,
    refused_for_good,
    session_of,
    told_apart,
)
from agentmemory_operator.consolidation.rules.model_json import read_answer
from agentmemory_operator.consolidation.rules.shapes import Misfit
from agentmemory_operator.errors import AgentMemoryError, ModelAnswerInvalid, ModelUnavailable, SpecInvalid
from agentmemory_operator.ports.models import Completion
from agentmemory_operator.spec.kinds.cel.embedding import OPENAI_URL

BLOCK = "spec.consolidation.model"
MAX_ATTEMPTS = 3
FIRST_DELAY_S = 0.5
# What stands around an answer, some of it at length: the model's thoughts, likelihoods.
ANSWER_BYTES = MIB
# Of a token as JSON writes it.
TOKEN_BYTES = 64
# An estimate where the service says nothing: fewer bytes a token than any model's average.
LEAST_TOKEN_BYTES = 3
# What marks a message, beside its text.
MARKS = 256

Form = Mapping[str, Any]
_JSON = {"response_format": {"type": "json_object"}}
FORMS: tuple[tuple[str, Form], ...] = (
    ("max_tokens", {**_JSON, "temperature": 0}),
    # Of OpenAI's own newer models, which take no temperature.
    ("max_completion_tokens", _JSON),
    # Of servers that know no form of answers.
    ("max_tokens", {"temperature": 0}),
)
"""The name of the bound on an answer, and what is asked beside it; the first that a service takes is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """How to reach the service and what to ask it for.

    Attributes:
        timeout_s: for one answer, retries and waits included.
    """

    model: str
    api_key: str | None = None
    base_url: str | None = None
    timeout_s: float = 120
    first_delay_s: float = FIRST_DELAY_S


class OpenAIChat:
    """Implements ports.LanguageModel.

    Args:
        egress: says whether the service may be connected to; each call raises SpecInvalid where it may not.
    """

    def __init__(
        self, options: ChatOptions, *, jitter: Callable[[], float] = random.random, egress: Egress = USUAL
    ) -> None:
        if not options.api_key and not options.base_url:
            message = f"{BLOCK}.secretRef: OpenAI needs a key: name a Secret, or set OPENAI_API_KEY in development"
            raise SpecInvalid("InvalidSpec", message)
        self._options = options
        self._jitter = jitter
        # What the service was seen to take; None until then.
        self._form: int | None = None
        self._where = (options.base_url or OPENAI_URL).rstrip("/")
        self._host = session_of(egress, self._where, options.api_key, field=f"{BLOCK}.baseURL")
        self._client = openai_client(self._host, self._where)

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """One answer of the schema; what the service refuses for the form of the request is asked in the next form."""
        deadline = time.monotonic() + self._options.timeout_s
        messages = [{"role": "system", "content": instructions}, {"role": "user", "content": material}]
        document = await self._answer(messages, max_tokens, deadline=deadline)
        sent_bytes = len(instructions.encode()) + len(material.encode())
        return _completion(document, schema, sent_bytes=sent_bytes, max_tokens=max_tokens)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._host.close()

    async def _answer(self, messages: list[dict[str, str]], max_tokens: int, *, deadline: float) -> Any:
        attempt, form = 1, self._form or 0
        while True:
            try:
                answer = await self._request(messages, max_tokens, form=form, deadline=deadline)
                self._form = form
                return answer
            except (ServiceRefused, openai.OpenAIError, aiohttp.ClientError, OSError) as exc:
                if self._form is None and form + 1 < len(FORMS) and _may_be_the_form(exc):
                    form += 1
                    continue
                refusal = self._refusal(exc)
                delay = delay_s(exc, attempt, first_s=self._options.first_delay_s, jitter=self._jitter)
                if not isinstance(refusal, ModelUnavailable) or attempt >= MAX_ATTEMPTS:
                    raise refusal from exc
                if time.monotonic() + delay >= deadline:
                    raise ModelUnavailable(str(refusal), retry_after_s=max(delay, 1.0)) from exc
            await asyncio.sleep(delay)
            attempt += 1

    async def _request(self, messages: list[dict[str, str]], max_tokens: int, *, form: int, deadline: float) -> Any:
        bound, asked = FORMS[form]
        try:
            with told_apart(f"{BLOCK}.secretRef"):
                answer = await self._client.chat.completions.with_raw_response.create(
                    model=self._options.model,
                    messages=cast(Any, messages),
                    extra_body={bound: max_tokens, **asked},
                    timeout=max(deadline - time.monotonic(), 0.05),
                    extra_headers={MOST_HEADER: str(ANSWER_BYTES + max_tokens * TOKEN_BYTES)},
                )
            document = orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            return None
        raise_if_error(document)
        return document

    def _refusal(self, exc: Exception) -> AgentMemoryError:
        where = f"language model {self._where}"
        if isinstance(exc, AnswerTooLarge):
            return ModelAnswerInvalid(f"{where}: {exc}")
        if not isinstance(exc, ServiceRefused):
            return ModelUnavailable(f"{where} cannot be reached: {type(exc).__name__}")
        if exc.may_pass:
            return ModelUnavailable(f"{where} answered {exc.summary}", retry_after_s=max(exc.retry_after_s or 1.0, 1.0))
        if exc.known_status in ABOUT_TEXTS:
            told = f"{exc.status} {exc.code}".strip()
            return ModelAnswerInvalid(f"{where} rejected the input ({told}): it is probably too long for the model")
        return refused_for_good(exc, where, block=BLOCK, model=self._options.model)


def _may_be_the_form(exc: Exception) -> bool:
    """Whether to ask in another form: not all services say what they miss. Only their taking the same shows it."""
    return isinstance(exc, ServiceRefused) and exc.known_status in (400, 422)


def _completion(document: Any, schema: Mapping[str, Any], *, sent_bytes: int, max_tokens: int) -> Completion:
    """What a service's answer holds.

    Raises:
        ModelAnswerInvalid: nothing that can be used.
    """
    text, reason = _content_of(document)
    tokens_in = _tokens(document, "prompt_tokens", most=sent_bytes + MARKS, estimate=sent_bytes)
    # Some think longer than they were let answer.
    tokens_out = _tokens(document, "completion_tokens", most=1 << 24, estimate=len(text.encode()))
    try:
        fitted = read_answer(_checked(text, reason), schema)
    except Misfit as misfit:
        message = f"the language model's answer is unusable: {misfit}"
        raise ModelAnswerInvalid(message, tokens_in=tokens_in, tokens_out=tokens_out) from None
    return Completion(fitted.value, tokens_in, tokens_out, dropped=fitted.dropped)


def _checked(text: str, reason: str) -> str:
    if reason == "length":
        raise Misfit("it was cut off at the token limit")
    if reason == "content_filter":
        raise Misfit("the service's content filter blocked it")
    return text


def _content_of(document: Any) -> tuple[str, str]:
    """Text of the first choice, and why it ended; empty where there is none."""
    choices = document.get("choices") if isinstance(document, dict) else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(choice, dict) or not isinstance(message, dict):
        return "", ""
    content, reason = message.get("content"), choice.get("finish_reason")
    return (content if isinstance(content, str) else ""), (reason if isinstance(reason, str) else "")


def _tokens(document: Any, name: str, *, most: int, estimate: int) -> int:
    """Tokens as the service says; where it says nothing that can be, an estimate of so many bytes."""
    usage = document.get("usage") if isinstance(document, dict) else None
    said = usage.get(name) if isinstance(usage, dict) else None
    if isinstance(said, int) and not isinstance(said, bool) and 0 < said <= most:
        return said
    return max(estimate // LEAST_TOKEN_BYTES, 1)
