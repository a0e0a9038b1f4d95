"""A relay in front of Qdrant that counts and records requests, and passes responses through unchanged.

It can delay requests to the durations of a real server: Qdrant 1.18.3, 2 cores, 8 clients. That server processes one
request at a time. A request that waits for an index is answered later, and does not block others while it waits. With
these delays, a collection with alias and 8 indexes takes 83 ms for 8 clients. The real server took 77 ms (300
collections) and 87 ms (1,000 collections).
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agentmemory_operator.adapters.qdrant.call_hooks import is_write

CHUNK = 1 << 16

# Seconds per request on a server that creates collections for 8 clients at once, by method, end of the path, and query.
CREATE_S, ALIAS_S, WAITED_INDEX_S, INDEX_S, PATCH_S, READ_S = 0.041, 0.002, 0.020, 0.005, 0.002, 0.0008


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded request.

    Attributes:
        target: Path and query.
    """

    method: str
    target: str
    body: bytes

    @property
    def is_write(self) -> bool:
        return is_write(self.method, self.target.partition("?")[0])

    @property
    def index_wait_s(self) -> float:
        """Seconds between the work of a real server and its response, for a request that waits for an index."""
        path, _, query = self.target.partition("?")
        return WAITED_INDEX_S - INDEX_S if path.endswith("/index") and "wait=true" in query else 0.0

    @property
    def works_s(self) -> float:
        """Seconds for which the request blocks a real server."""
        path = self.target.partition("?")[0]
        if path.endswith("/index"):
            return INDEX_S
        if path.endswith("/aliases"):
            return ALIAS_S
        return {"PUT": CREATE_S, "PATCH": PATCH_S}.get(self.method, READ_S)


@dataclass(slots=True)
class Relay:
    """Counts and records of the relayed requests.

    Attributes:
        targets: Number of requests by path and query.
        calls: Requests with bodies, recorded while `keeps_calls` is set.
        is_paced: True to delay requests as a real server would.
    """

    host: str
    port: int
    url: str = ""
    reads: int = 0
    writes: int = 0
    targets: Counter[str] = field(default_factory=Counter)
    keeps_calls: bool = False
    is_paced: bool = False
    calls: list[Call] = field(default_factory=list)
    _free_at_s: float = 0.0

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection until either side closes it."""
        server_reader, server_writer = await asyncio.open_connection(self.host, self.port)
        directions = [
            asyncio.create_task(self._requests(reader, server_writer)),
            asyncio.create_task(_copy(server_reader, writer)),
        ]
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for task in directions:
            task.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
        for end in (writer, server_writer):
            end.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                return
            body = await reader.readexactly(_length_of(head))
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            self._note(call := Call(method, target, body))
            if self.is_paced:
                await self._delay(call)
            writer.write(head + body)
            await writer.drain()

    async def _delay(self, call: Call) -> None:
        """Wait for the simulated server, which all connections share.

        A sleep that is too long delays no later request.
        """
        now_s = asyncio.get_running_loop().time()
        self._free_at_s = max(now_s, self._free_at_s) + call.works_s
        await asyncio.sleep(self._free_at_s + call.index_wait_s - now_s)

    def _note(self, call: Call) -> None:
        self.reads += not call.is_write
        self.writes += call.is_write
        self.targets[call.target] += 1
        if self.keeps_calls:
            self.calls.append(call)


@contextlib.contextmanager
def running_relay(target: str) -> Iterator[Relay]:
    """Relay to the server at `target` in a thread, while the context is open.

    Raises:
        RuntimeError: If the relay does not listen within 10 s.
    """
    parts = urlsplit(target)
    relay, serving, ends = Relay(parts.hostname or "127.0.0.1", parts.port or 80), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(relay, serving, ends)), daemon=True)
    thread.start()
    if not serving.wait(10):
        raise RuntimeError("the relay does not listen")
    try:
        yield relay
    finally:
        ends.set()
        thread.join()


async def _serve(relay: Relay, serving: threading.Event, ends: threading.Event) -> None:
    server = await asyncio.start_server(relay.relay, "127.0.0.1", 0)
    relay.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    serving.set()
    while not ends.is_set():
        await asyncio.sleep(0.1)
    server.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(CHUNK):
            writer.write(chunk)
            await writer.drain()


def _length_of(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
