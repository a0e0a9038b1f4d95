"""Headers of conditional requests (RFC 9110): `If-Match` and `If-None-Match` of a request, `ETag` of a response."""

import re
from typing import Any

from starlette.requests import Request

from agentmemory_operator.errors import FieldError, RequestInvalid
from agentmemory_operator.memories.rules.preconditions import ANY, Precondition

ETAG, IF_MATCH, IF_NONE_MATCH = "ETag", "If-Match", "If-None-Match"
IF_MATCH_SCHEMA: dict[str, Any] = {"type": "string", "maxLength": 66, "pattern": r'^(\*|"[!#-~]{1,64}")$'}
IF_NONE_MATCH_SCHEMA: dict[str, Any] = {"type": "string", "const": "*"}
ETAG_PATTERN = r"^(\*|[!#-~]{1,64})$"
"""Pattern of a tag in a body, where it has no quotes."""

_TAG = re.compile(r'"([!#-~]{1,64})"')


def read_precondition(request: Request, *, can_create: bool = False) -> Precondition | None:
    """Return the precondition in the headers of a request, or None if there is none.

    Args:
        can_create: True if the request may create what it names, so that `If-None-Match: *` is allowed.

    Raises:
        RequestInvalid: If a header is malformed, a list or a weak tag, or not allowed, or if both are given.
    """
    if_match, if_none_match = (request.headers.getlist(name) for name in (IF_MATCH, IF_NONE_MATCH))
    if if_match and if_none_match:
        raise _invalid(IF_NONE_MATCH, f"cannot be combined with {IF_MATCH}: send one of them")
    if if_match:
        return Precondition(_tag_of(if_match))
    if not if_none_match:
        return None
    if not can_create:
        raise _invalid(IF_NONE_MATCH, f"only a PUT of an item may create something: send {IF_MATCH}, or neither")
    if [text.strip() for text in if_none_match] != [ANY]:
        raise _invalid(
            IF_NONE_MATCH, f"must be *, which stores only if nothing is stored; for a version use {IF_MATCH}"
        )
    return Precondition(None)


def forbid_preconditions(request: Request, remedy: str) -> None:
    """Raise if a request has a header of a precondition, which would otherwise be ignored.

    Raises:
        RequestInvalid: With the remedy in the message.
    """
    for name in (IF_MATCH, IF_NONE_MATCH):
        if name in request.headers:
            raise _invalid(name, remedy)


def etag_header(etag: str | None) -> dict[str, str]:
    """Return the header `ETag` of a response; none without a tag."""
    return {} if etag is None else {ETAG: f'"{etag}"'}


def _tag_of(values: list[str]) -> str:
    text = ",".join(values).strip()
    if text == ANY:
        return ANY
    if tag := _TAG.fullmatch(text):
        return tag[1]
    if text.startswith("W/"):
        raise _invalid(IF_MATCH, "is a weak tag (W/), which never matches: send the ETag as the API returned it")
    if "," in text:
        raise _invalid(IF_MATCH, "must be one tag, not a list: send the ETag of the version that you have read")
    raise _invalid(IF_MATCH, 'must be * or one ETag in double quotes, as the API returned it: If-Match: "..."')


def _invalid(name: str, message: str) -> RequestInvalid:
    return RequestInvalid([FieldError(name, message)])
