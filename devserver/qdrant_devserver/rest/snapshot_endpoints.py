"""Endpoints of snapshots, for a collection or a shard in the path."""

import pathlib
import re
from collections.abc import Coroutine
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from qdrant_devserver.cluster.peers import Peer, check_local
from qdrant_devserver.error_answers import ErrorAnswer, engine_failure, invalid, malformed, malformed_parameter
from qdrant_devserver.fields import Document, require
from qdrant_devserver.rest.multipart import read_boundary, save_field
from qdrant_devserver.rest.requests import JsonResponse, collection_of, peer_of, peer_view, read_body, state_of
from qdrant_devserver.snapshots.collection_snapshots import (
    check_checksum,
    create_shard_snapshot,
    create_snapshot,
    recover_collection,
    recover_shard,
    shard_snapshot_folder,
)
from qdrant_devserver.snapshots.locations import fetch_snapshot

PRIORITIES = ("no_sync", "snapshot", "replica")
_SHA256 = re.compile("[0-9a-fA-F]{64}")


class Download(FileResponse):
    """A file that is sent in chunks of 1 MiB."""

    chunk_size = 1 << 20


async def list_snapshots(request: Request) -> list[Document]:
    """GET …/snapshots."""
    return peer_of(request).files.list(_snapshot_folder(request))


async def post_snapshot(request: Request) -> Any:
    """POST …/snapshots."""
    state, collection, peer = state_of(request), collection_of(request), peer_of(request)
    shard = _shard(request)
    if shard is None:
        return await _finish(request, create_snapshot(state, collection, peer))
    return await _finish(request, create_shard_snapshot(state, collection, shard, peer))


async def download_snapshot(request: Request) -> Response:
    """GET …/snapshots/{file}."""
    files = peer_of(request).files
    path = files.find(_snapshot_folder(request), request.path_params["file"])
    return Download(
        path, filename=path.name, media_type="application/octet-stream", headers=files.own_file_header(path)
    )


async def delete_snapshot(request: Request) -> bool:
    """DELETE …/snapshots/{file}."""
    peer_of(request).files.delete(_snapshot_folder(request), request.path_params["file"])
    return True


async def recover(request: Request) -> Any:
    """PUT …/snapshots/recover."""
    body = await read_body(request)
    location = require(body, "location")
    if not isinstance(location, str) or ":" not in location:
        raise malformed("location: relative URL without a base")
    if body.get("priority") not in (None, *PRIORITIES):
        raise malformed(f"unknown variant `{body['priority']}`, expected one of {', '.join(PRIORITIES)}")
    _read_checksum(body.get("checksum"))
    return await _finish(request, _fetch_and_recover(request, body))


async def upload(request: Request) -> Any:
    """POST …/snapshots/upload."""
    sha256 = _read_checksum(request.query_params.get("checksum"))
    if request.query_params.get("priority") not in (None, *PRIORITIES):
        raise malformed_parameter(f"unknown variant `{request.query_params['priority']}`")
    received, name = await _receive(request, peer_of(request))
    return await _finish(request, _recover_received(request, received, name, sha256))


def _shard(request: Request) -> int | None:
    shard: int | None = request.path_params.get("shard")
    return shard


def _snapshot_folder(request: Request) -> str:
    collection, shard = peer_view(request).resolve(request.path_params["name"]), _shard(request)
    if shard is None:
        return collection.name
    check_local(collection, shard, peer_of(request))
    return shard_snapshot_folder(collection, shard)


async def _receive(request: Request, peer: Peer) -> tuple[pathlib.Path, str | None]:
    """Save the form field `snapshot` of the body; return the file and its name from the client.

    Raises:
        ErrorAnswer: 400 if the body is not such a form; 500 if the disk is full.
    """
    boundary, received = read_boundary(request.headers.get("content-type", "")), peer.files.unfinished()
    try:
        with received.open("wb", buffering=0) as file:
            name = await save_field(request.stream(), boundary, "snapshot", target=file)
    except OSError as error:
        received.unlink(missing_ok=True)
        raise engine_failure(f"Failed to store the uploaded snapshot: {error}") from error
    except ErrorAnswer:
        received.unlink(missing_ok=True)
        raise
    return received, name


def _read_checksum(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise invalid("checksum", "value invalid, must be a SHA-256 of 64 hexadecimal digits")
    return value


async def _finish(request: Request, work: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of the work. With `wait=false` respond 202, and the work continues."""
    wait = request.query_params.get("wait", "true")
    if wait not in ("true", "false"):
        work.close()
        raise malformed_parameter(f"provided string was not `true` or `false`: `{wait}`")
    task = state_of(request).start(work)
    # The work also continues if the client disconnects.
    return await task if wait == "true" else JsonResponse({"status": "accepted", "time": 0.0}, status=202)


async def _fetch_and_recover(request: Request, body: Document) -> bool:
    async with fetch_snapshot(peer_of(request).files, body["location"], body.get("api_key")) as archive:
        return await _recover(request, archive, body.get("checksum"))


async def _recover_received(request: Request, received: pathlib.Path, name: str | None, sha256: str | None) -> bool:
    """Recover from an uploaded file.

    For a whole collection the file stays among its snapshots, even if the recovery fails.
    """
    try:
        if _shard(request) is not None:
            return await _recover(request, received, sha256)
        await check_checksum(received, sha256)
        state, files = state_of(request), peer_of(request).files
        target = request.path_params["name"]
        room = state.catalogue.resolve(target).name if state.catalogue.exists(target) else target
        return await _recover(request, files.keep(received, room, name), sha256)
    finally:
        received.unlink(missing_ok=True)


async def _recover(request: Request, archive: pathlib.Path, sha256: str | None) -> bool:
    state, peer, shard = state_of(request), peer_of(request), _shard(request)
    if shard is None:
        await recover_collection(state, request.path_params["name"], archive, peer, sha256)
    else:
        await recover_shard(state, collection_of(request), shard, archive, peer, sha256)
    return True
