"""Take one file out of a multipart body as it comes in: no body is ever in memory."""

import contextlib
import pathlib
import re
from collections.abc import AsyncIterator
from typing import IO

from qdrant_devserver.error_answers import ErrorAnswer

_LONGEST_HEAD_BYTES = 8192
_FILE_NAME = re.compile(rb'filename="([^"]*)"', re.IGNORECASE)


def read_boundary(content_type: str) -> bytes:
    """What separates the parts of a body.

    Raises:
        ErrorAnswer: 400, the body is no multipart form.
    """
    kind, _, parameters = content_type.partition(";")
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if kind.strip() == "multipart/form-data" and name == "boundary" and value:
            return value.strip('"').encode()
    raise ErrorAnswer(400, "Multipart error: could not find a Content-Type of multipart/form-data with a boundary")


async def save_field(body: AsyncIterator[bytes], boundary: bytes, name: str, *, target: IO[bytes]) -> str | None:
    """Write the content of the form's field `name` to a file; return the name that the sender gave it.

    Raises:
        ErrorAnswer: 400, the body has no such field, or ends before it does.
        OSError: the disk is full.
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
    """The last part of a file's name, so that it leads out of no folder."""
    found = _FILE_NAME.search(head)
    name = pathlib.PurePosixPath(found[1].decode(errors="replace")).name if found else ""
    return name if name not in ("", ".", "..") else None


class _PartReader:
    """Reads part by part; what was read ahead waits in `_buffer`."""

    def __init__(self, body: AsyncIterator[bytes], delimiter: bytes) -> None:
        self._body = body
        self._delimiter = delimiter
        # The first delimiter has no line before it.
        self._buffer = b"\r\n"

    async def part(self) -> AsyncIterator[bytes]:
        """Yield what comes before the next delimiter, and pass that."""
        while (end := self._buffer.find(self._delimiter)) < 0:
            # The end of what is here may be the beginning of a delimiter.
            ready = max(0, len(self._buffer) - len(self._delimiter) + 1)
            piece, self._buffer = self._buffer[:ready], self._buffer[ready:]
            if piece:
                yield piece
            await self._more()
        piece, self._buffer = self._buffer[:end], self._buffer[end + len(self._delimiter) :]
        yield piece

    async def skip_part(self) -> None:
        """Pass the next delimiter."""
        async with contextlib.aclosing(self.part()) as pieces:  # type: ignore[type-var]
            async for _ in pieces:
                pass

    async def head(self) -> bytes:
        """The head of a part."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > _LONGEST_HEAD_BYTES:
                raise ErrorAnswer(400, "Multipart error: the head of a part is too long")
            await self._more()
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        return head

    async def is_at_end(self) -> bool:
        """Whether the delimiter just passed was the last."""
        while len(self._buffer) < 2:
            await self._more()
        return self._buffer.startswith(b"--")

    async def _more(self) -> None:
        try:
            self._buffer += await anext(self._body)
        except StopAsyncIteration:
            raise ErrorAnswer(400, "Multipart error: Multipart stream is incomplete") from None
