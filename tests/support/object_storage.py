"""A real S3 server (versitygw) on loopback, over a folder; and an object store in memory for unit tests."""

import contextlib
import hashlib
import os
import pathlib
import resource
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field

import httpx
import pytest

from agentmemory_operator.errors import BytesDiffer, NotFound
from agentmemory_operator.ports.objects import AccessKey, Bucket, Stored
from tests.controlplane.build import OBJECT_STORAGE, find_assets
from tests.support.certificates import ServerFiles
from tests.support.controlplane import die_with_parent, free_port

KEY = AccessKey("test-access-key", "test-secret-key")
BUCKET = "copies"
READY_S = 20.0


class S3Server:
    """versitygw as a process; objects are files under `folder`.

    Args:
        folder: kept when the process dies.
        tls: serve https with these.
    """

    def __init__(self, folder: pathlib.Path, *, tls: ServerFiles | None = None) -> None:
        assets = find_assets(os.environ, OBJECT_STORAGE)
        if assets is None:
            pytest.fail("no versitygw yet: run `make controlplane` once (about 2 minutes)")
        self.folder = folder
        address = f"127.0.0.1:{free_port()}"
        self.url = f"{'https' if tls else 'http'}://{address}"
        encrypting = ["--cert", str(tls.certificate), "--key", str(tls.key)] if tls else []
        self._command = [str(assets / "versitygw"), "--quiet", "--port", address, *encrypting]
        self._process: subprocess.Popen[bytes] | None = None
        (folder / BUCKET).mkdir(parents=True, exist_ok=True)

    def bucket(self, url: str | None = None, **changes: object) -> Bucket:
        """Return how the bucket is reached; `url` is a proxy's."""
        fields: dict[str, object] = {
            "name": BUCKET,
            "region": "us-east-1",
            "endpoint": url or self.url,
            "access_key": KEY,
        }
        return Bucket(**(fields | changes))  # type: ignore[arg-type]

    def file(self, key: str) -> pathlib.Path:
        """Return where an object's bytes lie."""
        return self.folder / BUCKET / key

    def start(self, *, largest_file: int | None = None) -> None:
        """Start it and return when it answers.

        Args:
            largest_file: bytes; a file that grows above fails as on a full disk.
        """
        with_parent = die_with_parent()

        def prepare() -> None:
            if with_parent is not None:
                with_parent()
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        environment = os.environ | {"ROOT_ACCESS_KEY": KEY.id, "ROOT_SECRET_KEY": KEY.secret}
        self._process = subprocess.Popen(
            [*self._command, "posix", str(self.folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            preexec_fn=prepare,
        )
        deadline = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(self.url, timeout=2, verify=False)
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"versitygw does not answer at {self.url}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill it as a crash does; a second call does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def serving_s3(folder: pathlib.Path, *, tls: ServerFiles | None = None) -> Iterator[S3Server]:
    """Serve a folder while the context is open; https with `tls`."""
    server = S3Server(folder, tls=tls)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@dataclass(slots=True)
class MemoryObjects:
    """Implements ports.objects.ObjectStore.

    Attributes:
        objects: bytes and metadata by key.
        unfinished: keys of uploads that nobody ended, and when they began.
        now_ms: the storage's time.
    """

    objects: dict[str, tuple[bytes, dict[str, str]]] = field(default_factory=dict)
    unfinished: dict[str, int] = field(default_factory=dict)
    now_ms: int = 0

    async def close(self) -> None:
        """Do nothing."""

    async def put(self, key: str, content: AsyncIterator[bytes], *, metadata: Mapping[str, str]) -> Stored:
        """Keep the whole of the content."""
        whole = b"".join([chunk async for chunk in content])
        sha256 = hashlib.sha256(whole).hexdigest()
        told = {"sha256": sha256, "size": str(len(whole))}
        for name, value in told.items():
            if metadata.get(name, value) != value:
                raise BytesDiffer(f"{key}: {name} is {value}, not {metadata[name]}")
        self.objects[key] = (whole, dict(metadata) | told)
        return Stored(key, len(whole), sha256)

    async def head(self, key: str) -> Stored | None:
        """Return what is known of an object."""
        if key not in self.objects:
            return None
        whole, metadata = self.objects[key]
        return Stored(key, len(whole), metadata.get("sha256"), self.now_ms)

    @contextlib.asynccontextmanager
    async def get(self, key: str, *, offset: int = 0) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open an object's bytes, seven at a time."""
        if key not in self.objects:
            raise NotFound(f"no object {key!r}")
        whole = self.objects[key][0]

        async def chunks() -> AsyncIterator[bytes]:
            for start in range(offset, len(whole), 7):
                yield whole[start : start + 7]

        yield chunks()

    async def delete(self, key: str) -> None:
        """Forget an object."""
        self.objects.pop(key, None)

    async def list(self, prefix: str) -> AsyncIterator[Stored]:
        """Yield the objects whose keys begin so."""
        for key, (whole, _) in sorted(self.objects.items()):
            if key.startswith(prefix):
                yield Stored(key, len(whole), None, self.now_ms)

    async def abort_uploads(self, prefix: str, *, older_than_ms: int) -> int:
        """Forget unfinished uploads."""
        old = [
            key
            for key, began_ms in self.unfinished.items()
            if key.startswith(prefix) and self.now_ms - began_ms >= older_than_ms
        ]
        for key in old:
            del self.unfinished[key]
        return len(old)
