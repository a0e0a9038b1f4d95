"""Read the forms that pages send, and check their tokens."""

import asyncio
import hmac
from collections.abc import Mapping
from urllib.parse import parse_qsl

from starlette.requests import Request

from agentmemory_operator.entrypoints.api.bodies import media_type_of, wrong_media_type
from agentmemory_operator.entrypoints.api.problems import BODY_TOO_LARGE, FORBIDDEN, TOO_SLOW, Problem, ProblemRaised
from agentmemory_operator.entrypoints.api.ui.pages import SESSION
from agentmemory_operator.entrypoints.api.ui.sessions import BrowserSession

MAX_FORM_BYTES = 1 << 20
MAX_FIELDS = 64
READ_TIMEOUT_S = 10.0
_FORM = "application/x-www-form-urlencoded"


async def read_form(request: Request, *, max_bytes: int = MAX_FORM_BYTES) -> Mapping[str, str]:
    """Return the fields of a form, the last value of each name.

    Raises:
        ProblemRaised: If the form lacks the token of its session, is too large, arrives too slowly, or is not a form.
    """
    media_type = media_type_of(dict(request.scope["headers"]))
    if media_type != _FORM:
        raise wrong_media_type(media_type, expected=_FORM)
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            body = await _read_body(request, max_bytes)
    except TimeoutError:
        raise ProblemRaised(Problem(type=TOO_SLOW, detail="the form did not arrive in time: send it again")) from None
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise ProblemRaised(Problem(type=FORBIDDEN, detail="the form cannot be read: send it again")) from None
    # Browsers send the line breaks of a text field as CR LF.
    fields = {name: value.replace("\r\n", "\n") for name, value in pairs}
    _check_token(request, fields.get("csrf", ""))
    return fields


async def _read_body(request: Request, max_bytes: int) -> bytes:
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise ProblemRaised(Problem(type=BODY_TOO_LARGE, detail=f"the form has more than {max_bytes:,} bytes"))
        chunks.append(chunk)
    return b"".join(chunks)


def _check_token(request: Request, sent: str) -> None:
    session: BrowserSession = request.scope[SESSION]
    if session.is_new or not hmac.compare_digest(sent.encode(), session.csrf.encode()):
        detail = "the form is of another or an expired session: open the page again, and send the form from there"
        raise ProblemRaised(Problem(type=FORBIDDEN, detail=detail))
