"""A Kubernetes Service: new connections go to its pods; a removed pod keeps its existing connections."""

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator

from tests.support.web.http_server import HOST

CHUNK = 1 << 16


class ClusterService:
    """A constant `url` for changing processes."""

    def __init__(self) -> None:
        self.url = ""
        self._pods: list[int] = []
        self._chance = random.Random(1)
        self._talks: set[asyncio.Task[None]] = set()

    def add(self, port: int) -> None:
        """Send new connections to this pod too."""
        self._pods.append(port)

    def remove(self, port: int) -> None:
        """Send no new connections to this pod."""
        self._pods.remove(port)

    async def serve(self, started: threading.Event, over: asyncio.Event) -> None:
        """Forward bytes until `over` is set."""
        server = await asyncio.start_server(self._begin, HOST, 0)
        self.url = f"http://{HOST}:{server.sockets[0].getsockname()[1]}"
        started.set()
        await over.wait()
        server.close()
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._talk(reader, writer))
        self._talks.add(talk)
        talk.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            pod_reader, pod_writer = await asyncio.open_connection(HOST, self._chance.choice(self._pods))
            ways = [asyncio.create_task(_pass_on(*way)) for way in ((reader, pod_writer), (pod_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                pod_writer.close()
        writer.close()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()


@contextlib.contextmanager
def cluster_service() -> Iterator[ClusterService]:
    """Serve a Service inside the context, at first without pods."""
    service, started, loops = ClusterService(), threading.Event(), []

    async def run() -> None:
        over = asyncio.Event()
        loops.append((asyncio.get_running_loop(), over))
        await service.serve(started, over)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert started.wait(20), "the service did not start within 20 s"
    try:
        yield service
    finally:
        [(loop, over)] = loops
        loop.call_soon_threadsafe(over.set)
        thread.join(20)
