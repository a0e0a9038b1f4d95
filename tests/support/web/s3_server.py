"""A real S3 server (versitygw) on loopback, over a folder."""

import contextlib
import os
import pathlib
import resource
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from agentmemory_operator.ports.objects import AccessKey, Bucket
from tests.controlplane.build import OBJECT_STORAGE
from tests.support.forked import die_with_parent
from tests.support.patience import Patience
from tests.support.programs import find_built, free_port
from tests.support.web.http_server import ServerFiles

KEY = AccessKey("test-access-key", "test-secret-key")
BUCKET = "copies"
READY_S = 20.0


class S3Server:
    """versitygw as a process. Objects are files in `folder`.

    Args:
        folder: Folder of the objects; it remains after the process.
        tls: Certificate and key for https; None for http.
        key: Access key with all rights.
    """

    def __init__(self, folder: pathlib.Path, *, tls: ServerFiles | None = None, key: AccessKey = KEY) -> None:
        self.folder = folder
        self.key = key
        address = f"127.0.0.1:{free_port()}"
        self.url = f"{'https' if tls else 'http'}://{address}"
        encrypting = ["--cert", str(tls.certificate), "--key", str(tls.key)] if tls else []
        self._command = [str(find_built(OBJECT_STORAGE) / "versitygw"), "--quiet", "--port", address, *encrypting]
        self._process: subprocess.Popen[bytes] | None = None
        (folder / BUCKET).mkdir(parents=True, exist_ok=True)

    def bucket(self, url: str | None = None, **changes: object) -> Bucket:
        """Build the access to the bucket; `url` may be that of a proxy."""
        fields: dict[str, object] = {
            "name": BUCKET,
            "region": "us-east-1",
            "endpoint": url or self.url,
            "access_key": self.key,
        }
        return Bucket(**(fields | changes))  # type: ignore[arg-type]

    def file(self, key: str) -> pathlib.Path:
        """Return the file of an object."""
        return self.folder / BUCKET / key

    def start(self, *, largest_file: int | None = None) -> None:
        """Start the server; return when it responds.

        Args:
            largest_file: Size in bytes at which a growing file fails, as on a full disk; None for no limit.
        """
        with_parent = die_with_parent()

        def prepare() -> None:
            if with_parent is not None:
                with_parent()
            if largest_file is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

        environment = os.environ | {"ROOT_ACCESS_KEY": self.key.id, "ROOT_SECRET_KEY": self.key.secret}
        self._process = subprocess.Popen(
            [*self._command, "posix", str(self.folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            preexec_fn=prepare,
        )
        patience = Patience(READY_S)
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(self.url, timeout=2, verify=False)
                return
            if patience.is_over:
                raise TimeoutError(f"versitygw does not answer at {self.url}")
            time.sleep(0.02)

    def kill(self) -> None:
        """Kill the server as in a crash. A second call does nothing."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextlib.contextmanager
def serve_s3(folder: pathlib.Path, *, tls: ServerFiles | None = None, key: AccessKey = KEY) -> Iterator[S3Server]:
    """Serve a folder inside the context; https with `tls`."""
    server = S3Server(folder, tls=tls, key=key)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """An S3 server with an empty bucket."""
    with serve_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server
