"""Fetch a snapshot from the location in a request."""

import contextlib
import pathlib
import urllib.parse
from collections.abc import AsyncIterator

import aiohttp

from qdrant_devserver.error_answers import ErrorAnswer, engine_failure
from qdrant_devserver.storage.snapshot_files import OWN_FILE, SnapshotFiles

CONNECT_S, READ_S = 10, 60
_BLOCK_BYTES = 1 << 20


@contextlib.asynccontextmanager
async def fetch_snapshot(files: SnapshotFiles, location: str, api_key: str | None) -> AsyncIterator[pathlib.Path]:
    """Yield the file at a location. A download is a temporary copy, deleted at the end.

    Raises:
        ErrorAnswer: 400 if there is no file; 403 for a file outside the snapshot folder; 500 for a failed download.
        OSError: If the disk is full.
    """
    parts = urllib.parse.urlsplit(location)
    if parts.scheme == "file":
        yield files.find_local(pathlib.Path(urllib.parse.unquote(parts.path)))
        return
    if parts.scheme not in ("http", "https"):
        raise ErrorAnswer(400, f"Bad request: URL {location} with scheme {parts.scheme} is not supported")
    copy = files.unfinished()
    try:
        yield await _download(files, location, copy, api_key)
    finally:
        copy.unlink(missing_ok=True)


async def _download(files: SnapshotFiles, url: str, target: pathlib.Path, api_key: str | None) -> pathlib.Path:
    headers = {"accept-encoding": "identity"} | ({"api-key": api_key} if api_key else {})
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=READ_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=_BLOCK_BYTES) as session,
            session.get(url) as answer,
        ):
            if answer.status != 200:
                status = f"{answer.status} {answer.reason}"
                raise ErrorAnswer(400, f"Wrong input: Failed to download tar from {url}: status - {status}")
            if own := files.find_own(answer.headers.get(OWN_FILE, "")):
                # The request is sent all the same: the response proves that the API key and the name are valid.
                return own
            with target.open("wb", buffering=0) as file:
                async for piece in answer.content.iter_any():
                    file.write(piece)
    except (aiohttp.ClientError, TimeoutError) as error:
        raise engine_failure(f"Failed to download tar from {url}: {error}") from error
    return target
