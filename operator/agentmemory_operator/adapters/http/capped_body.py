"""Read response bodies up to a size limit, and the header `Retry-After`."""

from collections.abc import Mapping

import aiohttp

MIB = 1 << 20
# Limit for error responses. No known service sends more.
MAX_ERROR_BYTES = 64 << 10
# Upper bound of a `Retry-After` that is obeyed.
MAX_RETRY_AFTER_S = 3600.0


class AnswerTooLarge(aiohttp.ClientPayloadError):
    """The response exceeds the size limit of its call; the rest was not read."""


async def read_capped(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """Read the body of a response.

    Args:
        max_bytes: Maximum number of bytes.

    Raises:
        AnswerTooLarge: If the body is larger; the connection was closed.
        aiohttp.ClientError, TimeoutError: If the connection breaks, or the response takes too long.
    """
    length = response.content_length
    if length is not None and length > max_bytes and response.method != "HEAD":
        raise _too_large(response, max_bytes)
    content, size = response.content, 0
    parts: list[bytes] = []
    while True:
        part = await content.readany()
        size += len(part)
        if size > max_bytes:
            parts.clear()
            raise _too_large(response, max_bytes)
        if content.at_eof():
            break
        parts.append(part)
    return b"".join((*parts, part)) if parts else part


async def read_error_body(response: aiohttp.ClientResponse) -> bytes:
    """Read the body of an error response, or return b'' if it is larger than 64 KiB. Other errors pass through."""
    try:
        return await read_capped(response, MAX_ERROR_BYTES)
    except AnswerTooLarge:
        return b""


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the `Retry-After` of a response in seconds, at most an hour; 0 if it is missing or no whole number."""
    header = headers.get("Retry-After", "")
    return min(float(header), MAX_RETRY_AFTER_S) if header.isascii() and header.isdecimal() else 0.0


def _too_large(response: aiohttp.ClientResponse, max_bytes: int) -> AnswerTooLarge:
    response.close()
    limit = f"{max_bytes // MIB} MiB" if max_bytes >= MIB else f"{max_bytes >> 10} KiB"
    return AnswerTooLarge(f"the answer is larger than the limit of {limit} for this call")
