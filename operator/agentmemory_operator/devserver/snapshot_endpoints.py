"""Endpoints of a collection's snapshots."""

import pathlib
import re
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from agentmemory_operator.devserver.collection_endpoints import collection_of, state_of
from agentmemory_operator.devserver.fields import Document, require
from agentmemory_operator.devserver.locations import fetched
from agentmemory_operator.devserver.multipart import read_boundary, save_field
from agentmemory_operator.devserver.problems import Problem, engine_failure, invalid, malformed, malformed_parameter
from agentmemory_operator.devserver.requests import JsonResponse, read_body
from agentmemory_operator.devserver.snapshots import create_snapshot, recover_collection
from agentmemory_operator.devserver.state import State

PRIORITIES = ("no_sync", "snapshot", "replica")
_SHA256 = re.compile("[0-9a-fA-F]{64}")


class Download(FileResponse):
    """A file in pieces of a megabyte."""

    chunk_size = 1 << 20


async def list_snapshots(request: Request) -> list[Document]:
    """GET /collections/{name}/snapshots."""
    return state_of(request).snapshots.list(collection_of(request).name)


async def post_snapshot(request: Request) -> Any:
    """POST /collections/{name}/snapshots."""
    state, collection = state_of(request), collection_of(request)
    return await finish(request, create_snapshot(state, collection))


async def download_snapshot(request: Request) -> Response:
    """GET /collections/{name}/snapshots/{file}."""
    name = collection_of(request).name
    files = state_of(request).snapshots
    path = files.find(name, request.path_params["file"])
    return Download(path, filename=path.name, media_type="application/octet-stream", headers=files.mark(path))


async def delete_snapshot(request: Request) -> bool:
    """DELETE /collections/{name}/snapshots/{file}."""
    state_of(request).snapshots.delete(collection_of(request).name, request.path_params["file"])
    return True


async def recover(request: Request) -> Any:
    """PUT /collections/{name}/snapshots/recover."""
    body = await read_body(request)
    location = require(body, "location")
    if not isinstance(location, str) or ":" not in location:
        raise malformed("location: relative URL without a base")
    if body.get("priority") not in (None, *PRIORITIES):
        raise malformed(f"unknown variant `{body['priority']}`, expected one of {', '.join(PRIORITIES)}")
    sha256 = read_checksum(body.get("checksum"))
    return await finish(request, _recover(state_of(request), request.path_params["name"], body | {"checksum": sha256}))


async def upload(request: Request) -> Any:
    """POST /collections/{name}/snapshots/upload."""
    state, sha256 = state_of(request), read_checksum(request.query_params.get("checksum"))
    if request.query_params.get("priority") not in (None, *PRIORITIES):
        raise malformed_parameter(f"unknown variant `{request.query_params['priority']}`")
    received = await receive(request, state)
    return await finish(request, _recover_received(state, request.path_params["name"], received, sha256))


async def receive(request: Request, state: State) -> pathlib.Path:
    """Return a file with what the form's field `snapshot` brought; whoever takes it deletes it.

    Raises:
        Problem: 400, the body is no such form; 500, the disk is full.
    """
    boundary, received = read_boundary(request.headers.get("content-type", "")), state.snapshots.unfinished()
    try:
        with received.open("wb", buffering=0) as file:
            await save_field(request.stream(), boundary, "snapshot", target=file)
    except OSError as error:
        received.unlink(missing_ok=True)
        raise engine_failure(f"Failed to store the uploaded snapshot: {error}") from error
    except Problem:
        received.unlink(missing_ok=True)
        raise
    return received


def read_checksum(value: Any) -> str | None:
    """Return the SHA-256 of a request, if it has one.

    Raises:
        Problem: 422, it is none.
    """
    if value is None:
        return None
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise invalid("checksum", "value invalid, must be a SHA-256 of 64 hexadecimal digits")
    return value


async def finish(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return what the work returns; with `wait=false` accept it and let it go on."""
    wait = request.query_params.get("wait", "true")
    if wait not in ("true", "false"):
        work.close()
        raise malformed_parameter(f"provided string was not `true` or `false`: `{wait}`")
    task = state_of(request).start(work)
    # Whoever hangs up does not end it either.
    return await task if wait == "true" else JsonResponse({"status": "accepted", "time": 0.0}, status=202)


async def _recover(state: State, name: str, body: Document) -> bool:
    async with fetched(state.snapshots, body["location"], body.get("api_key")) as archive:
        await recover_collection(state, name, archive, sha256=body["checksum"])
    return True


async def _recover_received(state: State, name: str, received: pathlib.Path, sha256: str | None) -> bool:
    try:
        await recover_collection(state, name, received, sha256=sha256)
    finally:
        received.unlink(missing_ok=True)
    return True
