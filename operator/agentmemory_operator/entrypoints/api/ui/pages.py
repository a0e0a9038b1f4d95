"""Render the pages: templates, the headers of every response, and the static files."""

import hashlib
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from agentmemory_operator.entrypoints.api.ui.marks import mark_html, mark_plain
from agentmemory_operator.entrypoints.api.ui.sessions import HOST_PREFIX, MAX_AGE_S, BrowserSession

UI_PREFIX = "/ui"
STATIC_PREFIX = f"{UI_PREFIX}/static"
SESSION, NEW_COOKIE = "ui_session", "ui_new_cookie"
"""Entries of the ASGI scope: the session of the request, and the cookie to set; it is absent if the browser has one."""

_FOLDER = Path(__file__).parent
_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
SAFE_HEADERS = {
    # Of a page, `build_policy` replaces it.
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    # With "no-referrer", browsers send `Origin: null` with forms, as pages of other sites may.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


def render_page(request: Request, template: str, values: Mapping[str, Any], status: int = 200) -> Response:
    """Render a template as a page. Where htmx asked for it, the browser takes the part that changes."""
    nonce, session = secrets.token_urlsafe(16), request.scope.get(SESSION) or BrowserSession()
    context = {
        "csrf": session.csrf,
        "has_token": bool(session.token),
        "nonce": nonce,
        "path": request.scope["path"],
    }
    text = _environment().get_template(template).render(context | dict(values))
    headers = SAFE_HEADERS | {"Content-Security-Policy": build_policy(nonce)}
    response = Response(text, status, headers, "text/html")
    add_cookie(request, response)
    return response


def build_policy(nonce: str) -> str:
    """Return the Content-Security-Policy of a page: no script without the nonce, nothing of other hosts, no frame."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'self'; img-src 'self'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


def redirect(request: Request, path: str) -> Response:
    """Redirect to another page of the explorer. A POST becomes a GET."""
    if b"hx-request" in dict(request.scope["headers"]):
        response = Response("", 200, SAFE_HEADERS | {"HX-Redirect": path})
    else:
        response = Response("", 303, SAFE_HEADERS | {"Location": path})
    add_cookie(request, response)
    return response


def add_cookie(request: Request, response: Response) -> None:
    """Set the cookie of a new session."""
    if (value := request.scope.get(NEW_COOKIE)) is not None:
        set_cookie(request, response, value)


def set_cookie(request: Request, response: Response, value: str) -> None:
    """Set the cookie of a session; an empty value removes it.

    The browser sends it over TLS only, if it has connected by TLS. A proxy may end TLS in front of this server, so the
    header `Origin`, which the browser sets, counts too.
    """
    is_tls = request.scope["scheme"] == "https" or request.headers.get("origin", "").startswith("https:")
    name: str = request.scope[SESSION].cookie
    response.set_cookie(
        HOST_PREFIX + name if is_tls else name,
        value,
        max_age=MAX_AGE_S if value else 0,
        # The prefix needs this path.
        path="/" if is_tls else UI_PREFIX,
        secure=is_tls,
        httponly=True,
        samesite="strict",
    )


async def send_static(request: Request) -> Response:
    """Return a static file. Its URL changes with its content, so browsers keep it.

    They do not keep one of another version under this URL, which a replica may send during an update.
    """
    found = static_files().get(request.path_params["name"])
    if found is None:
        return Response("", 404, SAFE_HEADERS)
    content, media_type = found
    is_same = request.scope["query_string"].decode() == _digest(request.path_params["name"])
    cached = {"Cache-Control": "public, max-age=31536000, immutable"} if is_same else {}
    return Response(content, 200, SAFE_HEADERS | cached, media_type)


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return content and media type of each static file, by name."""
    files = (path for path in (_FOLDER / "static").iterdir() if path.suffix in _MEDIA_TYPES)
    return {path.name: (path.read_bytes(), _MEDIA_TYPES[path.suffix]) for path in files}


def static_url(name: str) -> str:
    """Return the path of a static file, with a hash of its content."""
    return f"{STATIC_PREFIX}/{name}?{_digest(name)}"


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(static_files()[name][0]).hexdigest()[:12]


def agent_url(agent: str, page: str = "", **query: object) -> str:
    """Return the path of a page of an agent. Query values of None and '' are left out."""
    path = f"{UI_PREFIX}/agents/{quote(agent, safe='')}" + (f"/{page}" if page else "")
    kept = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(kept, doseq=True)}" if kept else path


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    # Letters of all scripts stay as they are; `marked` shows the characters that hide text.
    environment.policies["json.dumps_kwargs"] = {"sort_keys": True, "ensure_ascii": False}
    environment.globals |= {"static_url": static_url, "agent_url": agent_url}
    environment.filters |= {"marked": _marked, "unmarked": _unmarked, "when": render_when, "number": render_number}
    environment.filters["size"] = render_size
    return environment


def _finalize(value: Any) -> Any:
    """Mark control characters in every value of a template that is not marked already."""
    if isinstance(value, Markup):
        return value
    return "" if value is None else mark_plain(value) if isinstance(value, str) else value


def _marked(value: Any) -> Markup:
    """Filter for texts between tags: each control character becomes an element."""
    return mark_html("" if value is None else str(value))


def _unmarked(value: Any) -> Markup:
    """Filter for values that a form sends back: escaped only."""
    return escape("" if value is None else str(value))


def render_when(time: str | None, has_seconds: bool = False) -> str:
    """Render a time of the API in UTC to the minute; '-' if there is none. A text that is no time stays as it is."""
    if time is None:
        return "-"
    try:
        return datetime.fromisoformat(time).strftime("%Y-%m-%d %H:%M:%S" if has_seconds else "%Y-%m-%d %H:%M")
    except ValueError:
        return time


def to_time(text: str) -> str | None:
    """Convert the value of a date or time field to a time of the API, in UTC; a day means its end. None if empty."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        # The API rejects it, and names the field.
        return text
    if len(text) == len("2026-03-03"):
        time = time.replace(hour=23, minute=59, second=59)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).isoformat()


def render_number(value: float | None) -> str:
    """Render an integer with separators, another number with three decimals; '-' if there is none."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def render_size(size_bytes: float | None) -> str:
    """Render a number of bytes in the largest unit that fits, with powers of 1,000; '-' if there is none."""
    if size_bytes is None:
        return "-"
    units = iter(("bytes", "kB", "MB", "GB"))
    unit = next(units)
    while abs(size_bytes) >= 1000 and (larger := next(units, None)):
        size_bytes, unit = size_bytes / 1000, larger
    return f"{size_bytes:,.0f} {unit}" if unit == "bytes" else f"{size_bytes:,.1f} {unit}"
