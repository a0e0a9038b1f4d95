"""Parts that the adapters share: searches, conversations, prompts and outages.

Adapters call the blocking client, in a thread where the framework is asynchronous. So an adapter works in any event
loop, also if the framework runs each call of an agent in a loop of its own.
"""

import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Unpack

from agentmemory_client.context_calls import ContextMessage, SectionName
from agentmemory_client.exchange import RETRIED_STATUSES
from agentmemory_client.handles import User
from agentmemory_client.memory_calls import ConversationOptions, Message, SearchOptions
from agentmemory_client.problems import ApiError, ApiUnreachable
from agentmemory_client.texts import is_visible
from agentmemory_client.values import Found

logger = logging.getLogger("agentmemory_client.adapters")

MAX_QUERY_CHARS, MAX_TOP_K = 65_536, 10_000
MAX_TURN_CHARS, MAX_TURNS = 65_536, 256
# The API accepts bodies up to 1 MiB. Characters are counted as escaped JSON, which is never shorter than the body.
MAX_CONVERSATION_CHARS = 900_000
# The turns of the session are in the prompt already.
CONTEXT_SECTIONS: tuple[SectionName, ...] = ("facts", "relevant")


def find_memories(user: User, query: str, *, limit: int, **options: Unpack[SearchOptions]) -> tuple[Found, ...]:
    """Return the `limit` best memories that can be read. A query without a visible character finds none."""
    query = clean_text(query, MAX_QUERY_CHARS)
    if limit < 1 or not query:
        return ()
    options["top_k"] = min(limit, MAX_TOP_K)
    return tuple(found for found in user.search(query, **options).results if found.content)


def clean_text(text: str, max_chars: int) -> str:
    """Return the beginning of a text, '' if it has no visible character.

    Models return halves of surrogate pairs, which no request can contain. Each becomes U+FFFD.
    """
    clean = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")[:max_chars]
    return clean if is_visible(clean) else ""


def store_turns(user: User, turns: Iterable[Message], **options: Unpack[ConversationOptions]) -> None:
    """Store the turns of a conversation that have visible text, in as few requests as the API's limits allow."""
    for batch in split_turns(turns):
        store_batch(user, batch, **options)


def store_batch(
    user: User, batch: Sequence[Message], *, idempotency_key: str | None = None, **options: Unpack[ConversationOptions]
) -> None:
    """Store turns in one request. Turns that the API refuses (422) are logged as lost: a repetition would fail too."""
    try:
        user.converse(batch, idempotency_key=idempotency_key, **options)
    except ApiError as error:
        if error.status != 422:
            raise
        logger.error("%d messages are not stored: %s", len(batch), error)


def split_turns(turns: Iterable[Message]) -> list[list[Message]]:
    """Split turns into batches that the API accepts. Turns without visible text are left out, long ones truncated."""
    batches, room = list[list[Message]](), 0
    for turn in turns:
        cut: Message = {**turn, "content": clean_text(turn["content"], MAX_TURN_CHARS)}
        if not cut["content"]:
            continue
        size = len(json.dumps(cut))
        if not batches or len(batches[-1]) == MAX_TURNS or size > room:
            batches.append([])
            room = MAX_CONVERSATION_CHARS
        batches[-1].append(cut)
        room -= size
    return batches


def newest_messages(turns: Iterable[Message | ContextMessage]) -> list[ContextMessage]:
    """Return the newest turns with visible text that one request accepts, oldest first; long ones truncated."""
    sent, room = list[ContextMessage](), MAX_CONVERSATION_CHARS
    for turn in reversed(list(turns)):
        message: ContextMessage = {"role": turn["role"], "content": clean_text(turn["content"], MAX_TURN_CHARS)}
        if not message["content"]:
            continue
        room -= len(json.dumps(message))
        if room < 0 or len(sent) == MAX_TURNS:
            break
        sent.insert(0, message)
    return sent


def build_context(user: User, turns: Sequence[Message], *, budget_tokens: int) -> str:
    """Build a text for a prompt from the facts about the user and the memories that bear on the last turn of a user.

    The result is '' if there is no such turn or no memory. Memories with the text of a turn are left out.

    Args:
        turns: Turns that the prompt has already. Of very long ones the newest are sent.
    """
    sent = newest_messages(turns)
    if not any(message["role"] == "user" for message in sent):
        return ""
    context = user.context(messages=sent, budget_tokens=budget_tokens, sections=CONTEXT_SECTIONS)
    return context.text if context.lines else ""


def is_outage(error: ApiError | ApiUnreachable) -> bool:
    """Return whether the memory is unavailable for now. Any other error is a mistake in the request or the settings."""
    return isinstance(error, ApiUnreachable) or error.status in RETRIED_STATUSES or error.status >= 500


@contextmanager
def outages_logged(consequence: str) -> Iterator[None]:
    """Log an outage as a warning, with its consequence, and continue. Other errors pass through."""
    try:
        yield
    except (ApiError, ApiUnreachable) as error:
        if not is_outage(error):
            raise
        logger.warning("%s: %s", consequence, error)
