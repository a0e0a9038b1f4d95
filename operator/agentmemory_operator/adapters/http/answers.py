"""Bodies of answers, read up to what a legitimate one may be at most."""

from collections.abc import Mapping

import aiohttp

MIB = 1 << 20
# Of an answer that is an error: more is none of those that we know.
WORDS_BYTES = 64 << 10
# A server that asks for a longer pause is asked again all the same.
LONGEST_PAUSE_S = 3600.0


class AnswerTooLarge(aiohttp.ClientPayloadError):
    """An answer is larger than any legitimate one; it was not read further."""


async def read_capped(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The body.

    Raises:
        AnswerTooLarge: it has more bytes than `most`; the connection is closed.
    """
    length = response.content_length
    if length is not None and length > most and response.method != "HEAD":
        raise _too_large(response, most)
    content, size = response.content, 0
    parts: list[bytes] = []
    while True:
        part = await content.readany()
        size += len(part)
        if size > most:
            parts.clear()
            raise _too_large(response, most)
        if content.at_eof():
            break
        parts.append(part)
    return b"".join((*parts, part)) if parts else part


async def read_words(response: aiohttp.ClientResponse) -> bytes:
    """The body of an answer that is an error, nothing of one that is too large to be read."""
    try:
        return await read_capped(response, WORDS_BYTES)
    except AnswerTooLarge:
        return b""


def retry_after_s(headers: Mapping[str, str]) -> float:
    """The pause that a server asks for; a date counts as no wish."""
    asked = headers.get("Retry-After", "")
    return min(float(asked), LONGEST_PAUSE_S) if asked.isascii() and asked.isdecimal() else 0.0


def _too_large(response: aiohttp.ClientResponse, most: int) -> AnswerTooLarge:
    response.close()
    return AnswerTooLarge(f"the answer is larger than the limit of {_size(most)} for this call")


def _size(count: int) -> str:
    return f"{count // MIB} MiB" if count >= MIB else f"{count >> 10} KiB"
