"""`python -m bench.copies`: duration and memory of the copy of a large snapshot to S3 and back.

A process of its own takes the place of Qdrant: it sends a file and receives one. The S3 server is versitygw. The times
are compared with a plain copy of a file of the same size in the same run: read, written and synced to disk.
"""

import argparse
import asyncio
import hashlib
import multiprocessing
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from multiprocessing.connection import Connection
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from agentmemory_operator.adapters.qdrant.snapshots import QdrantSnapshots
from agentmemory_operator.adapters.s3.bucket_objects import S3Objects
from agentmemory_operator.connections.buckets import Storages
from agentmemory_operator.connections.rules.object_keys import copy_location, parse_location
from agentmemory_operator.snapshots.copies import Copies, ServerFile
from agentmemory_operator.spec.kinds.agent_memory import Metadata
from agentmemory_operator.spec.kinds.spec_snapshot import S3Storage
from bench.progress import log_progress
from bench.tables import machine, render
from tests.support.engine.fakes import FakeSecrets
from tests.support.web.http_server import serve
from tests.support.web.s3_server import BUCKET, KEY, serve_s3

NAMESPACE = "bench"
BLOCK = hashlib.shake_256(b"a snapshot").digest(1 << 20)
SNAPSHOT = Metadata(name="large", namespace=NAMESPACE, uid="00000000")
SECRETS = FakeSecrets({(NAMESPACE, "s3", "access-key-id"): KEY.id, (NAMESPACE, "s3", "secret-access-key"): KEY.secret})


def serve_file(pipe: Connection, mib: int) -> None:
    """Serve a snapshot of `mib` MiB and accept uploads until killed. Send the URL through the pipe."""

    async def send_snapshot(request: Request) -> Response:
        async def blocks() -> AsyncIterator[bytes]:
            for _ in range(mib):
                yield BLOCK

        return StreamingResponse(blocks(), headers={"content-length": str(mib << 20)})

    async def report_single_node(request: Request) -> Response:
        return JSONResponse({"result": {"status": "disabled"}, "status": "ok", "time": 0.0})

    async def receive_snapshot(request: Request) -> Response:
        async for _ in request.stream():
            pass
        return JSONResponse({"result": True, "status": "ok", "time": 0.0})

    routes = [
        Route("/cluster", report_single_node),
        Route("/collections/{name}/snapshots/upload", receive_snapshot, methods=["POST"]),
        Route("/collections/{name}/snapshots/{file}", send_snapshot),
    ]
    with serve(Starlette(routes=routes)) as url:
        pipe.send(url)
        threading.Event().wait()


async def measure(qdrant_url: str, storage: S3Storage, mib: int) -> list[tuple[str, float, float]]:
    """Return name, seconds and additional MiB of memory for each direction."""
    digest = hashlib.sha256()
    for _ in range(mib):
        digest.update(BLOCK)
    sha256, copies = digest.hexdigest(), Copies(Storages(SECRETS, S3Objects))
    location = copy_location(storage, SNAPSHOT, slug="bench", file="large.snapshot")
    source = QdrantSnapshots(qdrant_url)
    try:
        file = ServerFile(store=source, physical="bench", name="large.snapshot", size=mib << 20, sha256=sha256)
        sending = copies.send(file, location, storage=storage, slug="bench", namespace=NAMESPACE)
        sent = await _measured("to S3, and read back whole", sending)
        returning = copies.recover(parse_location(location, sha256=sha256), source, "restored", namespace=NAMESPACE)
        return [sent, await _measured("from S3 to Qdrant", returning)]
    finally:
        await source.close()


async def _measured(name: str, operation: Awaitable[object]) -> tuple[str, float, float]:
    log_progress(name)
    before_mib, started_s = peak_mib(), time.monotonic()
    await operation
    return name, time.monotonic() - started_s, peak_mib() - before_mib


def plain_copy_s(folder: Path, mib: int) -> float:
    """Return the seconds of a plain copy of a file of that size."""
    origin, target = folder / "origin", folder / "target"
    with origin.open("wb") as file:
        for _ in range(mib):
            file.write(BLOCK)
    started_s = time.monotonic()
    shutil.copyfile(origin, target)
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    took_s = time.monotonic() - started_s
    origin.unlink()
    target.unlink()
    return took_s


def peak_mib() -> float:
    """Return the peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.copies", description=__doc__)
    parser.add_argument("--mib", type=int, default=2048)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve_file, args=(theirs, options.mib), daemon=True)
    process.start()
    with tempfile.TemporaryDirectory(prefix="agentmemory-bench-") as name:
        plain_s = plain_copy_s(Path(name), options.mib)
        with serve_s3(Path(name) / "s3") as server:
            fields = {"endpoint": server.url, "bucket": BUCKET, "prefix": "bench", "secretRef": {"name": "s3"}}
            lines = asyncio.run(measure(ours.recv(), S3Storage.model_validate(fields), options.mib))
    process.kill()
    print(f"{machine()}\n\n{options.mib} MiB; a plain copy of the file: {plain_s:.1f} s\n")
    rows = [
        (what, f"{s:.1f}", f"{options.mib / s:.0f}", f"{s / plain_s:.1f}", f"{more:.0f}") for what, s, more in lines
    ]
    print(render(("", "s", "MiB/s", "times a plain copy", "MiB more memory"), rows))


if __name__ == "__main__":
    main()
