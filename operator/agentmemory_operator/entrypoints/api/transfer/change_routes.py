"""The route of the change log, as pages or as server-sent events.

A stream counts as an export and ends after 5 minutes. Its reader reconnects with `Last-Event-ID`, and is then
authenticated again. The reader's rights are checked at each read of the log.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated

import orjson
from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from agentmemory_operator.agents.authorisation import check_rights
from agentmemory_operator.agents.fenced_store import retry_if_moved
from agentmemory_operator.entrypoints.api.identity.rights import GuardedRoute, caller_of
from agentmemory_operator.entrypoints.api.load.request_slots import REQUEST_SLOT, RequestSlot
from agentmemory_operator.entrypoints.api.openapi import READ_PROBLEMS, build_router, describe
from agentmemory_operator.entrypoints.api.response_views import json_response
from agentmemory_operator.entrypoints.api.transfer import change_requests
from agentmemory_operator.entrypoints.api.transfer.change_requests import (
    MAX_CURSOR_CHARS,
    ChangesOut,
    ChangesParameters,
)
from agentmemory_operator.entrypoints.api.use_cases import services_of
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.memories.change_log import ChangePage, ChangesRequest, read_changes
from agentmemory_operator.spec.caller_rights import Verb

EVENTS = "text/event-stream"
ALIVE = b": alive\n"
# Seconds to pause after a read without changes.
POLL_S = 0.5
KEEP_ALIVE_PERIOD_S = 15.0
# Maximum duration of a stream in seconds. The reader then has to authenticate again.
MAX_STREAM_S = 300.0

router = build_router("Changes", GuardedRoute)

ReadOn = Callable[[str], Awaitable[ChangePage]]
"""Function that reads the page of the log after a cursor."""


@router.get("/{agent}/changes", summary="Read the change log", **describe(ChangesOut, problems=READ_PROBLEMS))
async def list_changes(
    agent: str,
    request: Request,
    parameters: Annotated[ChangesParameters, Query()],
    last_event_id: Annotated[str | None, Header(max_length=MAX_CURSOR_CHARS)] = None,
) -> Response:
    """List changes, oldest first: IDs and kinds, no text. `Accept: text/event-stream` streams them as they happen."""
    services = services_of(request)

    async def read(changes_request: ChangesRequest) -> ChangePage:
        verb = Verb.READ if parameters.user_id is not None else Verb.ADMIN
        check_rights(services.directory, agent, caller=caller_of(request), verb=verb)
        return await read_changes(await services.directory.open(agent), changes_request)

    is_stream = EVENTS in request.headers.get("accept", "")
    if is_stream:
        slot: RequestSlot = request.scope[REQUEST_SLOT]
        slot.start_export()
    first = await read(parameters.changes_request(cursor=last_event_id or parameters.cursor))
    if not is_stream:
        return json_response(change_requests.render_changes(first, agent))

    async def read_on(cursor: str) -> ChangePage:
        return await retry_if_moved(lambda: read(parameters.changes_request(cursor=cursor)))

    return StreamingResponse(_events(agent, first, read_on), media_type=EVENTS, headers={"Cache-Control": "no-store"})


async def _events(agent: str, page: ChangePage, read_on: ReadOn) -> AsyncIterator[bytes]:
    """Yield events until the stream times out or the log cannot be read. The reader reconnects and gets the error."""
    deadline_s = time.monotonic() + MAX_STREAM_S
    # Send something immediately, because some proxies forward the response headers only with the first data. Before
    # changes it has no id: a reader that was cut off there would continue after changes that it has not received.
    yield ALIVE + b"\n" if page.changes else _beat(page.next_cursor)
    beat_s = time.monotonic()
    while time.monotonic() < deadline_s:
        if page.changes:
            yield b"".join(_event(change_requests.render_change(change, agent)) for change in page.changes)
        else:
            if (now_s := time.monotonic()) - beat_s >= KEEP_ALIVE_PERIOD_S:
                yield _beat(page.next_cursor)
                beat_s = now_s
            await asyncio.sleep(POLL_S)
        try:
            page = await read_on(page.next_cursor)
        except AgentMemoryError:
            return


def _event(change: change_requests.Json) -> bytes:
    head = f"id: {change['cursor']}\nevent: {change['kind']}\ndata: ".encode()
    return head + orjson.dumps(change) + b"\n\n"


def _beat(cursor: str) -> bytes:
    """Render a keep-alive comment. Its id advances the reader's cursor though there is no event."""
    return ALIVE + f"id: {cursor}\n\n".encode()
