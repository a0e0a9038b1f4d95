"""Outgoing connections to addresses written by tenants: no forbidden host, no redirect, no oversized response.

The clients are imported where they are used: their libraries cost each test process that collects this module 2 s.
"""

import asyncio
import base64
import contextlib
import gzip
import importlib
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from agentmemory_operator.adapters.http.egress import DEFAULT_EGRESS, Egress, HostSession
from agentmemory_operator.adapters.http.https_files import HttpsFiles
from agentmemory_operator.adapters.http.httpx_transport import HostTransport, build_httpx_client
from agentmemory_operator.adapters.http.webhook_sender import HttpWebhookSender
from agentmemory_operator.connections.rules.egress_policy import EgressPolicy, parse_allowed
from agentmemory_operator.connections.rules.host_patterns import Address
from agentmemory_operator.errors import (
    AgentMemoryError,
    OutcomeUnknown,
    RequestInvalid,
    SpecInvalid,
    StorageRejected,
    StoreRejected,
    StoreUnavailable,
)
from agentmemory_operator.ports.objects import AccessKey, Bucket
from tests.support.web.http_server import Authority

if TYPE_CHECKING:
    from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "operator" / "agentmemory_operator"
KEY = "s3cr3t-key-4711"
TEXT = "the user's PIN is 4711"
TURNS = 10
# Some tests replace `asyncio.sleep`.
TURN = asyncio.sleep

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Listener:
    """Small server that records its requests.

    Attributes:
        answer: Writes the response to each request.
    """

    answer: Answer
    port: int = 0
    received: list[bytes] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            size = re.search(rb"(?i)content-length: (\d+)", head)
            self.received.append(head + (await reader.readexactly(int(size[1])) if size else b""))
            await self.answer(writer)
            await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def listening(answer: Answer, *, host: str = "127.0.0.1") -> AsyncIterator[Listener]:
    listener = Listener(answer)
    server = await asyncio.start_server(listener.handle, host, 0)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        # A response that the client does not read would outlive the loop. A connection that was just accepted gets its
        # writer after some turns of the loop.
        for _ in range(TURNS):
            for writer in listener.writers:
                writer.transport.abort()
            await TURN(0)


def answering(status: int, body: bytes = b"", *headers: str) -> Answer:
    """Build a handler that sends this response to each request."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
        writer.write("\r\n".join(lines).encode() + body)

    return answer


def embedder_at(url: str, egress: Egress = DEFAULT_EGRESS, **options: Any) -> "OpenAIEmbedder":
    from agentmemory_operator.adapters.embedding.openai_embedder import OpenAIEmbedder, OpenAIOptions

    given = {"model": "m", "dimensions": 8, "api_key": KEY, "base_url": f"{url}/v1", "timeout_s": 5}
    return OpenAIEmbedder(OpenAIOptions(**(given | options)), egress=egress)


def bucket_at(url: str) -> Bucket:
    return Bucket(name="bucket", region="us-east-1", endpoint=url, access_key=AccessKey("ACCESS-ID", KEY))


async def ask_collections(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.qdrant.collections import QdrantCollections

    store = QdrantCollections(url, api_key=KEY, egress=egress)
    try:
        await store.count("a")
    finally:
        await store.close()


async def ask_points(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.qdrant.points import QdrantPoints

    store = QdrantPoints(url, api_key=KEY, egress=egress)
    try:
        await store.scroll("a", {"limit": 1, "filter": {"must": [{"key": "userId", "match": {"value": TEXT}}]}})
    finally:
        await store.close()


async def write_points(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.qdrant.points import QdrantPoints

    store = QdrantPoints(url, api_key=KEY, egress=egress)
    try:
        await store.set_payload("a", {"content": TEXT}, {"must": []})
    finally:
        await store.close()


async def list_snapshots(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots

    store = QdrantSnapshots(url, api_key=KEY, egress=egress)
    try:
        await store.files("a")
    finally:
        await store.close()


async def download_snapshot(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots

    store = QdrantSnapshots(url, api_key=KEY, egress=egress)
    try:
        async with store.download("a", "b") as content:
            async for _ in content:
                pass
    finally:
        await store.close()


async def ask_nodes(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    """Ask a node for its replicas. Only the node has the address; the cluster's is not used."""
    from agentmemory_operator.adapters.qdrant.shard_snapshots import QdrantShardSnapshots

    store = QdrantShardSnapshots("http://127.0.0.1:9", (url,), api_key=KEY, egress=egress)
    try:
        await store._replicas.describe_inactive("a")
    finally:
        await store.close()


async def embed(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    embedder = embedder_at(url, egress)
    try:
        await embedder.embed([TEXT])
    finally:
        await embedder.aclose()


async def list_bucket(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.s3.bucket_objects import S3Objects

    objects = S3Objects(bucket_at(url), egress=egress)
    try:
        async for _ in objects.list("a"):
            pass
    finally:
        await objects.close()


async def read_object(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.s3.bucket_objects import S3Objects

    objects = S3Objects(bucket_at(url), egress=egress)
    try:
        async with objects.get("a") as content:
            async for _ in content:
                pass
    finally:
        await objects.close()


async def fetch_file(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    async with HttpsFiles(egress).open(f"{url}/a.snapshot") as content:
        async for _ in content:
            pass


async def ask_model(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    from agentmemory_operator.adapters.language_model.openai_chat import ChatOptions, OpenAIChat

    model = OpenAIChat(ChatOptions(model="m", api_key=KEY, base_url=f"{url}/v1", timeout_s=5), egress=egress)
    try:
        await model.complete("Say something.", TEXT, {"type": "object", "properties": {}}, 10)
    finally:
        await model.aclose()


async def tell_webhook(url: str, egress: Egress = DEFAULT_EGRESS) -> None:
    failure = await HttpWebhookSender(egress).send(
        "spec.webhooks[a].url", url, TEXT.encode(), {"webhook-signature": KEY}
    )
    if failure and " are blocked: " in failure:
        raise SpecInvalid("HostNotAllowed", failure)
    if failure:
        raise StoreUnavailable(failure)


CLIENTS = [
    *(ask_collections, ask_points, write_points, list_snapshots, download_snapshot, ask_nodes),
    *(embed, list_bucket, read_object, fetch_file, tell_webhook, ask_model),
]
EVERY_CLIENT = pytest.mark.parametrize("ask", CLIENTS, ids=lambda ask: ask.__name__)


def pairs(clients: Sequence[Any], values: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Return each client with two of the values, and each value with at least two clients."""
    turns = max(len(clients), len(values))
    of = [(place % len(clients), place % len(values)) for place in range(turns)]
    of += [(place % len(clients), (place + 1) % len(values)) for place in range(turns)]
    return [(clients[client], values[value]) for client, value in of]


def named(value: Any) -> str:
    """Return the name of a client, or the start of a value."""
    return value.__name__ if callable(value) else repr(value)[:24]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry failing nodes for 0.05 s instead of ten seconds."""
    from agentmemory_operator.adapters.qdrant import nodes

    # Some tests measure the CPU time of a call.
    importlib.import_module("agentmemory_operator.adapters.embedding.openai_embedder")
    monkeypatch.setattr(nodes.wait_for_views, "__kwdefaults__", {"timeout_s": 0.05})


class TestRedirects:
    @pytest.mark.parametrize(("ask", "status"), pairs(CLIENTS, [301, 302, 303, 307, 308]), ids=named)
    async def test_is_never_followed(self, ask: Callable[[str], Awaitable[None]], status: int) -> None:
        async with (
            listening(answering(200, b'{"result": {}, "data": []}')) as thief,
            listening(answering(status, b"", f"Location: {thief.url}/loot")) as server,
        ):
            with pytest.raises(AgentMemoryError) as raised:
                await ask(server.url)

        assert thief.received == []
        assert len(server.received) == 1
        assert re.search(f"answered {status}|which is not followed", str(raised.value))

    async def test_redirected_write_is_rejected_with_remedy(self) -> None:
        async with listening(answering(307, b"", "Location: http://127.0.0.1:9/")) as server:
            with pytest.raises(StoreRejected, match=r"answered 307, .* use the URL of the server itself"):
                await write_points(server.url)

    async def test_redirecting_storage_is_rejected(self) -> None:
        async with listening(answering(307, b"", "Location: http://127.0.0.1:9/")) as server:
            with pytest.raises(StorageRejected, match="correct region or endpoint"):
                await list_bucket(server.url)

    async def test_error_of_redirected_file_hides_the_target(self) -> None:
        async with listening(answering(302, b"", "Location: https://user:pass@a\x1b[31m.example/secret")) as server:
            with pytest.raises(StorageRejected) as raised:
                await fetch_file(server.url)

        assert "redirects to another address" in str(raised.value)


PAGE = b"<html>internal admin page\x1b[31m root:hunter2\r\n</html>"
SECRETS = ("hunter2", "root", "\x1b", "\n", KEY, TEXT, "ACCESS-ID")


BODIES = [
    PAGE,
    b'{"error": "root:hunter2"}',
    b'{"status": "root:hunter2"}',
    b'{"status": {"error": {"root": "hunter2"}}}',
    b'{"error": {"message": "root:hunter2 ' + TEXT.encode() + b'", "code": "root hunter2"}}',
    b"<Page><Code>Root</Code><Message>root:hunter2</Message></Page>",
    b"<Error><Code>root:hunter2</Code><Message>root:hunter2</Message></Error>",
    b"<?xml version='1.0' encoding='root'?><Error/>",
    b"\xff\xfe\x00root:hunter2",
    b"[" * 100_000,
]


class TestWords:
    @pytest.mark.parametrize(
        ("ask", "status", "body"),
        [
            (ask, (400, 404, 500)[(turn + place) % 3], body)
            for place, body in enumerate(BODIES)
            for turn, ask in enumerate(CLIENTS)
        ],
        ids=named,
    )
    async def test_unknown_error_body_is_not_repeated(
        self, ask: Callable[[str], Awaitable[None]], status: int, body: bytes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(asyncio, "sleep", _no_sleep)
        async with listening(answering(status, body)) as server:
            try:
                await ask(server.url)
            except AgentMemoryError as exc:
                message = str(exc)
            else:
                message = ""

        assert [secret for secret in SECRETS if secret in message] == []

    @pytest.mark.parametrize("ask", [ask_collections, ask_points])
    async def test_qdrant_error_is_one_printable_line(self, ask: Callable[[str], Awaitable[None]]) -> None:
        words = f"Wrong input: \\u001b[31mvector\\n{KEY} " + "x" * 1_000
        body = f'{{"status": {{"error": "{words}"}}, "time": 0.0}}'.encode()
        async with listening(answering(400, body)) as server:
            with pytest.raises(StoreRejected) as raised:
                await ask(server.url)

        # Errors about points are for their caller only.
        message = raised.value.server_message or str(raised.value)
        assert re.search(r"Wrong input: vector \.\.\. x{100}", message)
        assert message.isprintable()
        assert len(message) <= 230
        assert KEY not in message

    async def test_response_without_http_is_not_repeated(self) -> None:
        async def greet(writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.2 hunter2\r\n")

        for ask in CLIENTS:
            async with listening(greet) as server:
                with pytest.raises(AgentMemoryError) as raised:
                    await ask(server.url)

            assert "hunter2" not in str(raised.value)

    async def test_rejected_text_is_not_repeated(self) -> None:
        body = f'{{"error": {{"message": "bad input: {TEXT}", "type": "invalid_request_error"}}}}'.encode()
        async with listening(answering(400, body)) as server:
            with pytest.raises(RequestInvalid, match=r"\(400 invalid_request_error\)") as raised:
                await embed(server.url)

        assert TEXT not in str(raised.value)

    async def test_traceback_lacks_rejected_text(self) -> None:
        body = f'{{"error": {{"message": "bad input: {TEXT}"}}}}'.encode()
        for status in (400, 401, 404, 413, 422):
            async with listening(answering(status, body)) as server:
                with pytest.raises(AgentMemoryError) as raised:
                    await embed(server.url)

            assert TEXT not in "".join(traceback.format_exception(raised.value))

    @pytest.mark.parametrize("retry_after", ["9" * 400, "²", "-1", "nan", "inf", "1e999"])
    async def test_endless_retry_after_is_capped(self, retry_after: str) -> None:
        async with listening(answering(503, b"", f"Retry-After: {retry_after}")) as server:
            with pytest.raises(StoreUnavailable) as raised:
                await ask_collections(server.url)

        assert 0 <= raised.value.retry_after_s <= 3600


async def _no_sleep(_: float, turn: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Let other tasks run, and servers in other threads."""
    await turn(0)


SIZE_MIB = 600
# Memory that a client may use: the limits of points are the largest.
GROWTH_MIB = 40

# Each client is a fork of its own: a peak never falls again, and the imports are costly.
CHILD = """
import asyncio, contextlib, os, resource, sys
sys.path[:0] = [{root!r}, {package!r}]
from tests.security import test_egress as world

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

async def main(ask):
    with contextlib.suppress(world.AgentMemoryError, OSError):
        await ask("http://127.0.0.1:9")
    for url in {urls!r}:
        before, told = most(), "answered"
        try:
            await ask(url)
        except world.AgentMemoryError as exc:
            told = f"{{type(exc).__name__}}: {{exc}}"
        print(ask.__name__, most() - before, told, flush=True)

for name in {asks!r}:
    if os.fork() == 0:
        asyncio.run(main(getattr(world, name)))
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""


def _flood(connection: socket.socket, how: str, status: int) -> None:
    """Send 600 MiB, or as much as the client reads."""
    block, blocks = b"[]," * (1 << 18), SIZE_MIB * (1 << 20) // (3 << 18)
    with contextlib.suppress(OSError), connection:
        connection.settimeout(30)
        connection.recv(1 << 16)
        connection.sendall(f"HTTP/1.1 {status} x\r\n".encode())
        match how:
            case "length":
                connection.sendall(f"Content-Length: {len(block) * blocks}\r\n\r\n".encode())
                frame = block
            case "chunked":
                connection.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
                frame = b"%x\r\n%s\r\n" % (len(block), block)
            case "until closed":
                connection.sendall(b"Connection: close\r\n\r\n")
                frame = block
            case "both":
                connection.sendall(b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n")
                frame = b"%x\r\n%s\r\n" % (len(block), block)
            case "headers":
                frame = b"".join(b"X-%d: %s\r\n" % (number, b"y" * 4_000) for number in range(200))
            case _:
                frame = b"X-Long: " + block
        for _ in range(blocks):
            connection.sendall(frame)


@contextlib.contextmanager
def flooding(how: str, status: int) -> Iterator[str]:
    """Serve 600 MiB to each request."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=_flood, args=(connection, how, status), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


class TestSizes:
    def test_600_mib_response_does_not_grow_memory(self) -> None:
        asks = ["ask_collections", "ask_points", "write_points", "embed", "list_bucket"]
        ways = [(200, how) for how in ("length", "chunked", "until closed", "both", "headers", "one header")]
        ways.append((400, "chunked"))
        with contextlib.ExitStack() as stack:
            urls = [stack.enter_context(flooding(how, status)) for status, how in ways]
            script = CHILD.format(root=str(ROOT), package=str(ROOT / "operator"), asks=asks, urls=urls)
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=500, cwd=ROOT)

        assert done.returncode == 0, done.stderr[-2_000:]
        for ask in asks:
            lines = [line for line in done.stdout.splitlines() if line.startswith(f"{ask} ")]
            for (status, how), line in zip(ways, lines, strict=True):
                _, growth, message = line.split(" ", 2)
                assert int(growth) < GROWTH_MIB, (status, how, line)
                assert not message.startswith("answered"), (status, how, line)
                if status == 200 and how in ("length", "chunked", "until closed"):
                    assert "is larger than" in message or "OutcomeUnknown" in message, (how, line)

    async def test_write_with_oversized_response_is_unknown(self) -> None:
        async with listening(answering(200, b" " * (9 << 20))) as server:
            with pytest.raises(OutcomeUnknown):
                await write_points(server.url)

    @pytest.mark.parametrize("status", [200, 400])
    @pytest.mark.parametrize("header", ["Content-Encoding: gzip", "Content-Type: text/plain; charset=zlib_codec"])
    async def test_compressed_response_is_not_expanded(self, status: int, header: str) -> None:
        packed = gzip.compress(bytes(200 << 20)) if "gzip" in header else zlib.compress(bytes(40 << 20))
        async with listening(answering(status, packed, header)) as server:
            tracemalloc.start()
            with pytest.raises(SpecInvalid if status == 200 else RequestInvalid):
                await embed(server.url)
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()

        assert peak < 10 << 20

    @pytest.mark.parametrize("body", [b'{"data":[' + b"{}," * 1_300_000 + b"{}]}", b"[" * 4_000_000, b'"' * 4_000_000])
    async def test_allowed_response_is_parsed_within_a_second(self, body: bytes) -> None:
        async with listening(answering(200, body, "Content-Type: application/json")) as server:
            began = time.process_time()
            with pytest.raises(SpecInvalid, match="no list of 1 embeddings"):
                await embed(server.url)

        assert time.process_time() - began < 1

    @pytest.mark.parametrize(("numbers", "texts"), [(3072, 2048), (8, 1), (65_536, 16)])
    async def test_largest_embeddings_are_accepted(self, numbers: int, texts: int) -> None:
        vector = base64.b64encode(b"\x00\x00\x80\x3f" * numbers).decode()
        rows = ",".join(f'{{"object":"embedding","index":{n},"embedding":"{vector}"}}' for n in range(texts))
        async with listening(answering(200, f'{{"object":"list","data":[{rows}]}}'.encode())) as server:
            embedder = embedder_at(server.url, dimensions=numbers, batch_size=2048, timeout_s=60)
            vectors = await embedder.embed(["x"] * texts)
            await embedder.aclose()

        assert (len(vectors), len(vectors[0])) == (texts, numbers)

    async def test_page_of_thousand_large_vectors_is_accepted(self) -> None:
        from agentmemory_operator.adapters.qdrant.points import QdrantPoints

        vector = ",".join(["-0.012345678901234567"] * 3_072)
        points = ",".join(
            f'{{"id":{n},"payload":{{"content":"{"x" * 2_000}"}},"vector":[{vector}]}}' for n in range(1_000)
        )
        body = f'{{"result":{{"points":[{points}],"next_page_offset":null}},"status":"ok"}}'.encode()
        async with listening(answering(200, body)) as server:
            store = QdrantPoints(server.url, timeout_s=60)
            found, _ = await store.scroll("a", {"limit": 1_000, "with_payload": True, "with_vector": True})
            await store.close()

        assert len(found) == 1_000


def egress(
    listed: str = "",
    *,
    is_in_cluster: bool = False,
    api_servers: Sequence[tuple[str, int]] = (),
    names: dict[str, list[str]] | None = None,
) -> Egress:
    """Build a policy and its name resolution."""

    async def resolve(host: str, _: int) -> list[Address]:
        found = (names or {}).get(host.lower())
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [ip_address(address) for address in found]

    policy = EgressPolicy(allowed=parse_allowed(listed), is_in_cluster=is_in_cluster)
    return Egress(policy, api_servers=api_servers, resolve=resolve)


class TestAddresses:
    @pytest.mark.parametrize(
        ("ask", "host"),
        pairs(
            CLIENTS,
            [
                *("169.254.169.254", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]"),
                *("[fd00:ec2::254]", "100.100.100.200", "168.63.129.16", "0.0.0.0", "[::]", "[fe80::1]", "224.0.0.1"),
                *("metadata.google.internal", "evil.example.com", "EVIL.example.com"),
            ],
        ),
        ids=named,
    )
    async def test_forbidden_address_is_refused(self, ask: Callable[[str, Egress], Awaitable[None]], host: str) -> None:
        refusing = egress(names={"evil.example.com": ["169.254.169.254", "::ffff:169.254.169.254"]})

        with pytest.raises(SpecInvalid, match=r" are blocked: ") as raised:
            await ask(f"https://{host}:6333", refusing)

        assert raised.value.reason == "HostNotAllowed"
        assert re.match(
            r"(spec\.(url|nodes|(embedding|consolidation\.model)\.baseURL|webhooks\[a\]\.url)|endpoint|source\.url): ",
            str(raised.value),
        )

    @EVERY_CLIENT
    async def test_resolved_address_is_not_reported(self, ask: Callable[[str, Egress], Awaitable[None]]) -> None:
        with pytest.raises(SpecInvalid) as raised:
            await ask(
                "http://inner.example.com:6333", egress("10.0.0.0/8", names={"inner.example.com": ["192.168.7.9"]})
            )

        assert "192.168.7.9" not in str(raised.value)
        assert "AGENTMEMORY_ALLOWED_HOSTS" in str(raised.value)

    @pytest.mark.parametrize(
        ("ask", "host"),
        pairs(CLIENTS, ["2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.1", "127.0.0.1."]),
        ids=named,
    )
    async def test_other_spelling_of_address_is_refused(
        self, ask: Callable[[str, Egress], Awaitable[None]], host: str
    ) -> None:
        """The system's resolver reads these spellings as 127.0.0.1, if it accepts them."""
        in_pod = Egress(EgressPolicy(is_in_cluster=True))
        async with listening(answering(200)) as server:
            with pytest.raises(AgentMemoryError):
                await ask(f"http://{host}:{server.port}", in_pod)

        assert server.received == []

    @EVERY_CLIENT
    async def test_loopback_in_pod_must_be_listed(self, ask: Callable[[str, Egress], Awaitable[None]]) -> None:
        async with listening(answering(404)) as server:
            for host in ("127.0.0.1", "localhost"):
                url, names = f"http://{host}:{server.port}", {"localhost": ["127.0.0.1"]}
                with pytest.raises(SpecInvalid, match="loopback"):
                    await ask(url, egress(is_in_cluster=True, names=names))
                with pytest.raises(SpecInvalid, match="loopback"):
                    await ask(url, egress("0.0.0.0/0", is_in_cluster=True, names=names))
                assert server.received == []

                with contextlib.suppress(AgentMemoryError):
                    await ask(url, egress("127.0.0.1", is_in_cluster=True, names=names))
                assert server.received.pop()
                with contextlib.suppress(AgentMemoryError):
                    await ask(url, egress(names=names))
                assert server.received.pop()
                server.received.clear()

    @EVERY_CLIENT
    @pytest.mark.parametrize("api", ["127.0.0.1", "api.example.com"])
    async def test_api_server_is_refused_by_address_and_port(
        self, ask: Callable[[str, Egress], Awaitable[None]], api: str
    ) -> None:
        names = {"api.example.com": ["127.0.0.1"], "tenant.example.com": ["127.0.0.1"]}
        async with listening(answering(404)) as server, listening(answering(404)) as neighbour:
            protected = egress(api_servers=[(api, server.port)], names=names)
            for host in ("127.0.0.1", "tenant.example.com", "api.example.com"):
                with pytest.raises(SpecInvalid, match="API server"):
                    await ask(f"http://{host}:{server.port}", protected)
                with contextlib.suppress(AgentMemoryError):
                    await ask(f"http://{host}:{neighbour.port}", protected)

        assert server.received == []
        assert len(neighbour.received) >= 3

    async def test_only_permitted_addresses_are_used(self) -> None:
        from agentmemory_operator.adapters.qdrant.collections import QdrantCollections

        async with listening(answering(200, b'{"result": {"count": 3}}')) as server:
            mixed = egress(names={"q.example.com": ["169.254.169.254", "fe80::1", "127.0.0.1"]})
            store = QdrantCollections(f"http://q.example.com:{server.port}", egress=mixed)
            assert await store.count("a") == 3
            await store.close()

        assert len(server.received) == 1

    async def test_unlisted_name_is_not_resolved(self) -> None:
        lookups: list[str] = []

        async def resolve(host: str, _: int) -> list[Address]:
            lookups.append(host)
            return [ip_address("127.0.0.1")]

        policy = EgressPolicy(allowed=parse_allowed("*.infra.svc"))
        with pytest.raises(SpecInvalid, match="does not list it"):
            await ask_collections("http://exfiltrated-data.evil.example:6333", Egress(policy, resolve=resolve))

        assert lookups == []

    async def test_unresolvable_name_is_unavailable(self) -> None:
        with pytest.raises(StoreUnavailable, match="its host name does not resolve"):
            await ask_collections("http://nowhere.example.com:6333", egress())


class TestRebinding:
    """Host name that resolves to another address each time."""

    @EVERY_CLIENT
    async def test_connection_uses_the_checked_address(self, ask: Callable[[str, Egress], Awaitable[None]]) -> None:
        lookups: list[str] = []

        async def resolve(host: str, _: int) -> list[Address]:
            lookups.append(host)
            return [ip_address("127.0.0.1" if len(lookups) == 1 else "127.0.0.2")]

        policy = EgressPolicy(allowed=parse_allowed("127.0.0.1"), is_in_cluster=True)
        async with (
            listening(answering(404)) as server,
            _also_at("127.0.0.2", server.port, answering(200, b'{"result": {}}')) as inner,
        ):
            with contextlib.suppress(AgentMemoryError):
                await ask(f"http://rebound.example.com:{server.port}", Egress(policy, resolve=resolve))

        assert server.received
        assert inner.received == []

    async def test_name_is_resolved_once_per_connection(self) -> None:
        from agentmemory_operator.adapters.qdrant.points import QdrantPoints

        lookups: list[str] = []

        async def resolve(host: str, _: int) -> list[Address]:
            lookups.append(host)
            return [ip_address("127.0.0.1")]

        async def kept(writer: asyncio.StreamWriter) -> None:
            writer.write(b'HTTP/1.1 200 x\r\nContent-Length: 24\r\n\r\n{"result": {"count": 3}}')

        listener = Listener(kept)

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    head = await reader.readuntil(b"\r\n\r\n")
                    size = re.search(rb"(?i)content-length: (\d+)", head)
                    await reader.readexactly(int(size[1]) if size else 0)
                    listener.received.append(head)
                    await kept(writer)
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        store = QdrantPoints(f"http://q.example.com:{port}", egress=Egress(EgressPolicy(), resolve=resolve))
        for _ in range(20):
            assert await store.count("a", None) == 3
        await store.close()
        server.close()

        assert len(listener.received) == 20
        assert lookups == ["q.example.com"]

    async def test_socket_refuses_unchecked_address(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Last check, independent of the steps of the client library before it opens a socket."""
        import aiohttp

        async def elsewhere(self: Any, host: str, port: int, traces: Any = None) -> list[dict[str, Any]]:
            found = {"hostname": host, "host": "127.0.0.1", "port": port, "family": socket.AF_INET}
            return [found | {"proto": 0, "flags": 0}]

        monkeypatch.setattr(aiohttp.TCPConnector, "_resolve_host", elsewhere)
        refusing = egress("10.0.0.0/8", names={"q.example.com": ["10.0.0.5"]})
        async with listening(answering(200)) as server:
            for ask in CLIENTS:
                with pytest.raises(AgentMemoryError, match=r"reached|broke off|no answer"):
                    await ask(f"http://q.example.com:{server.port}", refusing)

        assert server.received == []


@contextlib.asynccontextmanager
async def _also_at(host: str, port: int, answer: Answer) -> AsyncIterator[Listener]:
    listener = Listener(answer, port=port)
    server = await asyncio.start_server(listener.handle, host, port)
    try:
        yield listener
    finally:
        server.close()


class TestProxies:
    """Through a proxy, only names are checked."""

    @pytest.mark.parametrize("ask", [embed, list_bucket])
    async def test_proxy_of_environment_is_used(
        self, ask: Callable[[str, Egress], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with listening(answering(404)) as proxy:
            monkeypatch.setenv("HTTP_PROXY", f"http://user:pass@127.0.0.1:{proxy.port}")
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            with contextlib.suppress(AgentMemoryError):
                await ask("http://embedder.example.com", egress(is_in_cluster=True))

        assert proxy.received[0].split(b" ")[1].startswith(b"http://embedder.example.com/")
        assert b"Proxy-Authorization: Basic dXNlcjpwYXNz" in proxy.received[0]

    @pytest.mark.parametrize("ask", [embed, list_bucket])
    @pytest.mark.parametrize(
        "host", ["169.254.169.254", "metadata.google.internal", "localhost", "api.example.com", "other.example.com"]
    )
    async def test_forbidden_host_is_not_sent_to_proxy(
        self, ask: Callable[[str, Egress], Awaitable[None]], host: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        refusing = egress("*.good.example", is_in_cluster=True, api_servers=[("api.example.com", 80)])
        async with listening(answering(404)) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            with pytest.raises(SpecInvalid, match=" are blocked: "):
                await ask(f"http://{host}", refusing)

        assert proxy.received == []

    @pytest.mark.parametrize("ask", [ask_collections, ask_points])
    async def test_qdrant_bypasses_proxy(
        self, ask: Callable[[str, Egress], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with listening(answering(404)) as proxy, listening(answering(404)) as server:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            monkeypatch.delenv("NO_PROXY", raising=False)
            with contextlib.suppress(AgentMemoryError):
                await ask(server.url, DEFAULT_EGRESS)

        assert (len(proxy.received), len(server.received)) == (0, 1)


class TestOneWayOut:
    """All clients use the one policy."""

    # Other modules that connect, the destination, and why no tenant can choose it.
    ELSEWHERE: ClassVar = {
        "adapters/http/egress.py": "the policy",
        "adapters/http/httpx_transport.py": "a client for libraries, which sends through the policy",
        "adapters/embedding/openai_embedder.py": "OpenAI's client, with that one",
        "adapters/http/openai_service.py": "OpenAI's client, with that one",
        "adapters/language_model/openai_chat.py": "OpenAI's client, with that one",
        "adapters/qdrant/control.py": "Qdrant's client, with that one",
        "adapters/kubernetes/transport.py": "the API server, of the pod or the kubeconfig",
        "adapters/otlp_tracer.py": "the collector, of the environment",
        "client/clients.py": "the caller's own API",
        "client/exchange.py": "the caller's own API",
        "entrypoints/cli/mcp_bridge.py": "the same, with the client of the command",
    }
    OPENS = re.compile(
        r"ClientSession\(|TCPConnector\(|httpx\.(Async)?Client\(|httpx\.(get|post|request|stream)\(|import openai|"
        r"urlopen|\nimport requests|from requests import|create_connection|open_connection|http\.client|import httpx|"
        r"trust_env|AsyncApiClient\)|QdrantClient\(|"
        r"OTLPSpanExporter\("
    )

    def test_no_other_module_opens_a_connection(self) -> None:
        opening = {
            str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if self.OPENS.search(path.read_text())
        }

        assert opening - set(self.ELSEWHERE) == set()

    def test_no_module_follows_redirects(self) -> None:
        following = re.compile(r"allow_redirects=True|follow_redirects=True|max_redirects")

        assert [path for path in PACKAGE.rglob("*.py") if following.search(path.read_text())] == []

    def test_openai_client_uses_our_transport(self) -> None:
        made = {path.name: path.read_text() for path in PACKAGE.rglob("*.py") if "AsyncOpenAI(" in path.read_text()}

        assert set(made) == {"openai_service.py"}
        assert "http_client=cast(Any, build_httpx_client(host, url))" in made["openai_service.py"]
        assert isinstance(
            build_httpx_client(HostSession(DEFAULT_EGRESS, "http://a", field="f"), "http://a")._transport, HostTransport
        )

    async def test_openai_client_opens_no_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a connection of the library's own")

        for library in ("httpcore", "httpcore2"):
            for pool in ("AsyncConnectionPool", "AsyncHTTPProxy"):
                monkeypatch.setattr(f"{library}.{pool}.__init__", refuse)
        async with listening(answering(200, b'{"data": [{"embedding": [0, 0, 0, 0, 0, 0, 0, 1]}]}')) as server:
            embedder = embedder_at(server.url)
            assert await embedder.embed([TEXT]) == [[0.0] * 7 + [1.0]]
            await embedder.aclose()

        assert len(server.received) == 1

    async def test_qdrant_client_opens_no_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from agentmemory_operator.adapters.qdrant.collections import QdrantCollections

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a connection of the library's own")

        for pool in ("AsyncConnectionPool", "AsyncHTTPProxy"):
            monkeypatch.setattr(f"httpcore.{pool}.__init__", refuse)
        async with listening(answering(200, b'{"result": {"collections": [{"name": "a"}]}}')) as server:
            store = QdrantCollections(server.url)
            assert await store.names() == ["a"]
            await store.close()

        assert len(server.received) == 1

    @pytest.mark.parametrize("name", ["Authorization", "authorization", "AUTHORIZATION"])
    async def test_openai_variables_are_not_sent(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        for variable in ("API_KEY", "ADMIN_KEY", "ORG_ID", "PROJECT_ID", "WEBHOOK_SECRET"):
            monkeypatch.setenv(f"OPENAI_{variable}", "hunter2")
        monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", f"{name}: Bearer hunter2\nX-Gateway: hunter2\nHost: hunter2")
        monkeypatch.setenv("OPENAI_BASE_URL", "http://hunter2.example.com")
        async with listening(answering(200, b'{"data": []}')) as server:
            with pytest.raises(SpecInvalid, match="no list of 1 embeddings"):
                await embed(server.url)

        [request] = server.received
        assert b"hunter2" not in request
        assert f"Authorization: Bearer {KEY}".encode() in request
        assert {line.split(b":")[0] for line in request.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]} == {
            *(b"Host", b"Authorization", b"Accept", b"Accept-Encoding", b"Content-Type", b"User-Agent"),
            b"Content-Length",
        }

    def test_every_client_gets_the_policy(self) -> None:
        sources = {path.name: path.read_text() for path in (PACKAGE / "main").glob("*.py")}

        for name in ("operator.py", "api.py", "development.py"):
            assert "build_egress(settings)" in sources[name]
        opened = re.findall(r"(?<!\w)Stores\(stack(?:[^()]|\([^()]*\))*\)", "".join(sources.values()))
        assert len(opened) >= 4
        assert all("egress=" in call for call in opened), opened


class TestTrust:
    async def test_certificate_is_checked_by_name(self, tmp_path: pathlib.Path) -> None:
        import ssl

        from agentmemory_operator.adapters.qdrant.collections import QdrantCollections

        authority = Authority(tmp_path)
        for host, is_trusted in (("q.example.com", True), ("other.example.com", False)):
            files = authority.issue(host=host)
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(files.certificate, files.key)
            listener = Listener(answering(200, b'{"result": {"count": 3}}'))
            server = await asyncio.start_server(listener.handle, "127.0.0.1", 0, ssl=context)
            url = f"https://q.example.com:{server.sockets[0].getsockname()[1]}"
            names = egress(names={"q.example.com": ["127.0.0.1"]})
            store = QdrantCollections(url, ca_pem=authority.pem, egress=names)
            if is_trusted:
                assert await store.count("a") == 3
            else:
                with pytest.raises(StoreUnavailable, match="certificate was rejected"):
                    await store.count("a")
            await store.close()
            server.close()
