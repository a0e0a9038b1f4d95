"""Forward JSON-RPC messages, one a line, to the endpoint `/mcp` of the API, and its responses back.

1. Each line is sent as it is, with agent and user in the URL. So tools, rights, limits and errors are those of the API.
2. A response that is JSON-RPC becomes a line. Any other response, or none, becomes a JSON-RPC error of the request.
3. Requests are sent concurrently. `notifications/cancelled` drops the named request, which then gets no response.

Over HTTP some fields of a message are repeated in headers; `_protocol_headers` adds them.
"""

import asyncio
import json
import logging
import os
import threading
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    import httpx

    from agentmemory_client import AsyncClient

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 4 << 20
"""Maximum size of a message. The API accepts 1 MiB; a longer line is an error and is not kept in memory."""

MAX_CONCURRENT_REQUESTS, MAX_WAITING_REQUESTS = 16, 256
"""Maximum number of requests that are sent, and that are sent or wait. With more, the next line waits."""

PARSE_ERROR, INVALID_REQUEST, INTERNAL_ERROR = -32700, -32600, -32603
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
"""Field of `params._meta` with the protocol version. Before 2026-07-28 only `initialize` names the version."""

_NAME_FIELDS = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_READ_BYTES = 1 << 16

Json = dict[str, Any]


@dataclass(slots=True)
class McpBridge:
    """Connection of one host to the API.

    Attributes:
        target: Query parameters that name the agent and the user.
        headers: Further headers of each request.
        write: Writes a line to the host.
    """

    client: "AsyncClient"
    target: Mapping[str, str]
    headers: Mapping[str, str]
    write: Callable[[bytes], None]
    _version: str | None = None
    _requests: dict[str | int, asyncio.Task[None]] = field(default_factory=dict)

    async def serve(self, lines: AsyncIterator[bytes]) -> None:
        """Forward messages until the lines end and every request has its response."""
        slots, waiting = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS), asyncio.Semaphore(MAX_WAITING_REQUESTS)
        async with asyncio.TaskGroup() as group:
            async for line in lines:
                if (message := self._parse(line)) is None:
                    continue
                if message.get("method") == "notifications/cancelled":
                    self._cancel(message)
                    continue
                # Wait here only if many requests wait for a slot: a cancellation has to pass them.
                await waiting.acquire()
                task = group.create_task(self._forward(message, line, slots))
                task.add_done_callback(lambda _: waiting.release())
                if _is_request(message):
                    self._requests[message["id"]] = task

    def _parse(self, line: bytes) -> Json | None:
        """Parse a line; None if it is blank or no message, which is written as an error."""
        if not line.strip():
            return None
        try:
            message = json.loads(line) if len(line) <= MAX_LINE_BYTES else None
        except (ValueError, RecursionError) as error:
            self._write_error(None, PARSE_ERROR, f"the line is not JSON: {error}")
            return None
        if isinstance(message, dict) and isinstance(message.get("id", 0), str | int):
            return message
        self._write_error(
            None, INVALID_REQUEST, f"a line must be one JSON-RPC message of {MAX_LINE_BYTES} bytes at most"
        )
        return None

    def _cancel(self, message: Json) -> None:
        parameters = message.get("params")
        request_id = parameters.get("requestId") if isinstance(parameters, dict) else None
        if isinstance(request_id, str | int) and (task := self._requests.get(request_id)):
            task.cancel()

    async def _forward(self, message: Json, line: bytes, slots: asyncio.Semaphore) -> None:
        try:
            async with slots:
                with self.client.connection.transport_errors():
                    response = await self.client.http.post(
                        "/mcp", params=dict(self.target), content=line.strip(), headers=self._headers_of(message)
                    )
            self._answer(message, response)
        except Exception as error:  # noqa: BLE001  # no request must end the others
            self._fail(message, str(error) or repr(error))
        finally:
            if _is_request(message) and self._requests.get(message["id"]) is asyncio.current_task():
                del self._requests[message["id"]]

    def _headers_of(self, message: Json) -> dict[str, str]:
        sent = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        return sent | dict(self.headers) | self.client.connection.authorization | self._protocol_headers(message)

    def _protocol_headers(self, message: Json) -> dict[str, str]:
        """Return the headers that repeat fields of the message, as its version of the protocol requires."""
        method, parameters = message.get("method"), message.get("params")
        parameters = parameters if isinstance(parameters, dict) else {}
        meta = parameters.get("_meta")
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if not isinstance(version, str) or not isinstance(method, str):
            is_negotiated = self._version is not None and method != "initialize"
            return {"MCP-Protocol-Version": self._version or ""} if is_negotiated else {}
        headers = {"MCP-Protocol-Version": _header_value(version), "Mcp-Method": _header_value(method)}
        name = parameters.get(_NAME_FIELDS.get(method, ""))
        return headers | ({"Mcp-Name": _header_value(name)} if isinstance(name, str) else {})

    def _answer(self, message: Json, response: "httpx.Response") -> None:
        # Import here, because other commands do not need it.
        from agentmemory_client.problems import read_problem

        document = _read_json_rpc(response)
        if document is None:
            if response.is_error:
                self._fail(message, str(read_problem(response.status_code, response.content)))
            elif _is_request(message):
                self._fail(message, f"the API sent no JSON-RPC response, but {response.status_code}")
            return
        if message.get("method") == "initialize" and isinstance(result := document.get("result"), dict):
            self._version = result.get("protocolVersion")
        if not _is_request(message):
            log.warning("the API refused a message: %s", document)
        elif document.get("id") == message["id"] and b"\n" not in response.content:
            # Pass the bytes on, because parsing may change numbers.
            self.write(response.content)
        else:
            self.write(_to_line(document | {"id": message["id"]}))

    def _fail(self, message: Json, reason: str) -> None:
        if _is_request(message):
            self._write_error(message["id"], INTERNAL_ERROR, reason)
        else:
            log.warning("the API did not accept a message: %s", reason)

    def _write_error(self, request_id: str | int | None, code: int, reason: str) -> None:
        self.write(_to_line({"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": reason}}))


async def read_lines(descriptor: int) -> AsyncIterator[bytes]:
    """Yield the lines of a file, pipe or terminal, without their ends. Of a line longer than the maximum, yield a part.

    A daemon thread reads, because a blocked read of a terminal or pipe must not keep the process alive.
    """
    loop, lines = asyncio.get_running_loop(), asyncio.Queue[bytes | None](MAX_CONCURRENT_REQUESTS)

    def deliver(line: bytes | None) -> None:
        asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()

    threading.Thread(target=_read, args=(descriptor, deliver), daemon=True).start()
    while (line := await lines.get()) is not None:
        yield line


def _read(descriptor: int, deliver: Callable[[bytes | None], None]) -> None:
    pending = b""
    # Errors: the file is closed, or the event loop has ended.
    with suppress(Exception):
        with suppress(OSError):
            while chunk := os.read(descriptor, _READ_BYTES):
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    deliver(line)
                pending = pending[: MAX_LINE_BYTES + 1]
        deliver(pending)
        deliver(None)


def _is_request(message: Json) -> bool:
    return "method" in message and "id" in message


def _read_json_rpc(response: "httpx.Response") -> Json | None:
    """Return the JSON-RPC message of a response, or None if it has none."""
    if not response.headers.get("Content-Type", "").startswith("application/json"):
        return None
    try:
        document = response.json()
    except ValueError:
        return None
    return document if isinstance(document, dict) and "jsonrpc" in document else None


def _header_value(text: str) -> str:
    """Encode a text that a header cannot contain, in the way that the protocol defines."""
    is_plain = text.isascii() and text.isprintable() and text == text.strip() and not text.startswith("=?base64?")
    return text if is_plain else f"=?base64?{b64encode(text.encode(errors='replace')).decode()}?="


def _to_line(document: Json) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode(errors="replace")
