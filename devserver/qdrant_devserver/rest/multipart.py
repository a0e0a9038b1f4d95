"""Extract one file from a multipart body while it arrives; the body is never held in memory."""

import contextlib
import pathlib
import re
from collections.abc import AsyncIterator
from typing import IO

from qdrant_devserver.error_answers import ErrorAnswer

_MAX_HEAD_BYTES = 8192
_FILE_NAME = re.compile(rb'filename="([^"]*)"', re.IGNORECASE)


def read_boundary(content_type: str) -> bytes:
    """Return the boundary between the parts of a body.

    Raises:
        ErrorAnswer: 400 if the body is not a multipart form.
    """
    kind, _, parameters = content_type.partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if kind.strip() == "multipart/form-data" and name == "boundary" and value:
            return value.strip('"').encode()
    raise ErrorAnswer(400, "Multipart error: could not find a Content-Type of multipart/form-data with a boundary")


async def save_field(body: AsyncIterator[bytes], boundary: bytes, name: str, *, target: IO[bytes]) -> str | None:
    """Write the content of the form field `name` to a file; return the file name given by the client, without folders.

    None if the client gave no usable file name.

    Raises:
        ErrorAnswer: 400 if the body has no such field, or ends before it is complete.
        OSError: If the disk is full.
    """
    reader = _PartReader(body, b"\r\n--" + boundary)
    await reader.skip_part()
    while not await reader.is_at_end():
        head = await reader.head()
        if f'name="{name}"'.encode() in head.lower():
            async for piece in reader.part():
                target.write(piece)
            return _file_name(head)
        await reader.skip_part()
    raise ErrorAnswer(400, f"Multipart error: Field {name!r} is required")


def _file_name(head: bytes) -> str | None:
    """Return the last part of a file name, so it cannot point outside its folder."""
    found = _FILE_NAME.search(head)
    name = pathlib.PurePosixPath(found[1].decode(errors="replace")).name if found else ""
    return name if name not in ("", ".", "..") else None


class _PartReader:
    """Reader for the parts of a body; `_buffer` holds bytes that were read ahead."""

    def __init__(self, body: AsyncIterator[bytes], delimiter: bytes) -> None:
        self._body = body
        self._delimiter = delimiter
        # The first delimiter has no preceding line break in the body.
        self._buffer = b"\r\n"

    async def part(self) -> AsyncIterator[bytes]:
        """Yield the bytes up to the next delimiter, and consume the delimiter."""
        while (end := self._buffer.find(self._delimiter)) < 0:
            # The end of the buffer may be the start of a delimiter.
            ready = max(0, len(self._buffer) - len(self._delimiter) + 1)
            piece, self._buffer = self._buffer[:ready], self._buffer[ready:]
            if piece:
                yield piece
            await self._read_more()
        piece, self._buffer = self._buffer[:end], self._buffer[end + len(self._delimiter) :]
        yield piece

    async def skip_part(self) -> None:
        """Consume everything up to and including the next delimiter."""
        async with contextlib.aclosing(self.part()) as pieces:  # type: ignore[type-var]
            async for _ in pieces:
                pass

    async def head(self) -> bytes:
        """Read the headers of a part, at most about 8 KiB, and consume them."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _MAX_HEAD_BYTES:
                raise ErrorAnswer(400, "Multipart error: the head of a part is too long")
            await self._read_more()
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        return head

    async def is_at_end(self) -> bool:
        """Return whether the last consumed delimiter ends the body."""
        while len(self._buffer) < 2:
            await self._read_more()
        return self._buffer.startswith(b"--")

    async def _read_more(self) -> None:
        try:
            self._buffer += await anext(self._body)
        except StopAsyncIteration:
            raise ErrorAnswer(400, "Multipart error: Multipart stream is incomplete") from None
