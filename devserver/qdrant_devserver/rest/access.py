"""Access control: an API key and, optionally, tokens signed with it (HS256) that grant access to some collections.

It follows qdrant.tech/documentation/security, "Granular access control with JWT". As recorded from a real server, a
token is compared with the name in the path: a token for an alias grants access by the alias, not by the name of its
target.
"""

import hmac
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jwt
from jwt.types import Options
from jwt.warnings import InsecureKeyLengthWarning
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from qdrant_devserver.error_answers import ErrorAnswer, forbidden, not_built
from qdrant_devserver.rest.requests import error_response

OPEN_PATHS = frozenset({"/", "/healthz", "/livez", "/readyz"})
LEEWAY_S = 30
SIGNED: Options = {"verify_aud": False}
KNOWN_CLAIMS = frozenset({"sub", "exp", "access", "subject"})
MANAGE, READ = "m", "r"
# POST requests that change nothing.
READ_ONLY_POSTS = frozenset({"points", "points/query", "points/query/batch", "points/scroll", "points/count", "facet"})
WRITE_MODES = frozenset({"rw", "prw"})
# Requests that create a collection or replace its points. REPLICAS moves them.
GLOBAL_ACCESS_SUFFIXES = ("snapshots/recover", "snapshots/upload")
REPLICAS = "cluster"
# No foreign name server resolves `localhost` or a name below it (RFC 6761, 6.3).
LOCAL_HOST = re.compile(rb"(?:(?:[\w.-]+\.)?localhost\.?|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?")
# Values that a browser sends for pages of this origin, and for a typed address.
ALLOWED_FETCH_SITES = (b"same-origin", b"none")
MAX_QUOTED_CHARS = 100


class LocalOnlyGuard:
    """Middleware that rejects requests from pages of other sites, for a server without an API key.

    Such a page could otherwise reach this server through the browser on the same machine.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request unless a page of another site sends it."""
        if scope["type"] == "http" and (reason := foreign_page_reason(dict(scope["headers"]), scheme=scope["scheme"])):
            await error_response(forbidden(reason), time.perf_counter())(scope, receive, send)
            return
        await self._app(scope, receive, send)


def foreign_page_reason(headers: Mapping[bytes, bytes], *, scheme: str) -> str | None:
    """Return the reason why a request comes from a web page of another site, or None if it may pass.

    A page may send requests to loopback. Through a name of its own that resolves to loopback (DNS rebinding) it may
    also read the responses. It cannot choose these headers, because the browser sets them. Other clients send only
    `Host`.

    Source: https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/.
    """
    host = headers.get(b"host", b"").lower()
    if not LOCAL_HOST.fullmatch(host):
        return f"Host is {_quote(host)}: this server only serves its own machine; use localhost, 127.0.0.1 or [::1]"
    origin = headers.get(b"origin")
    if origin is not None and origin.lower() != scheme.encode() + b"://" + host:
        return (
            f"Origin is {_quote(origin)}, not that of {_quote(host)}: requests from pages of other sites are rejected"
        )
    site = headers.get(b"sec-fetch-site", b"none")
    if site not in ALLOWED_FETCH_SITES:
        return f"Sec-Fetch-Site is {_quote(site)}: requests from pages of other sites are rejected"
    return None


def _quote(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:MAX_QUOTED_CHARS])


class KeyGuard:
    """Middleware that rejects requests without the key, or beyond the rights of their token.

    Args:
        has_jwt_rbac: True to accept tokens in addition to the key.
    """

    def __init__(self, app: ASGIApp, api_key: str, *, has_jwt_rbac: bool = False) -> None:
        self._app = app
        self._key = api_key
        self._has_jwt_rbac = has_jwt_rbac

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request if its key or token allows it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        secrets = _presented_secrets(scope)
        if any(hmac.compare_digest(value, self._key.encode()) for value in secrets):
            await self._app(scope, receive, send)
            return
        claims = next(filter(None, map(self._claims, secrets)), None) if self._has_jwt_rbac else None
        if claims is None:
            text = "Must provide an API key or an Authorization bearer token"
            await PlainTextResponse(text, 401)(scope, receive, send)
            return
        try:
            _check(claims, _Call.of(scope["method"], scope["path"]))
        except ErrorAnswer as problem:
            await error_response(problem, started)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _claims(self, token: bytes) -> dict[str, Any] | None:
        """Return the claims of a token, or None if the key did not sign it or it has expired."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", InsecureKeyLengthWarning)
                return jwt.decode(token, self._key, algorithms=["HS256"], leeway=LEEWAY_S, options=SIGNED)
        except jwt.InvalidTokenError:
            return None


@dataclass(frozen=True, slots=True)
class _Call:
    """Target and kind of a request.

    Attributes:
        collection: Name of the collection in the path; empty if the request concerns the whole server.
        subpath: Path after the collection.
    """

    method: str
    collection: str
    subpath: str

    @classmethod
    def of(cls, method: str, path: str) -> "_Call":
        first, _, remainder = path.removeprefix("/").partition("/")
        collection, _, rest = remainder.partition("/")
        is_of_collection = first == "collections" and collection not in ("", "aliases")
        return cls(method, collection if is_of_collection else "", rest)

    @property
    def writes(self) -> bool:
        """True if the request may change something."""
        return self.method != "GET" and not (self.method == "POST" and self.subpath in READ_ONLY_POSTS)


def _check(claims: dict[str, Any], call: _Call) -> None:
    """Raise unless the claims allow the call.

    Raises:
        ErrorAnswer: 403 if they do not; 501 for claims that this server does not support.
    """
    if unknown := claims.keys() - KNOWN_CLAIMS:
        raise not_built(f"the claims {sorted(unknown)} of a token")
    access = claims.get("access", MANAGE)
    if access in (MANAGE, READ):
        if access == READ and call.writes:
            raise forbidden("Global manage access is required")
        return
    if not call.collection:
        raise forbidden("Global access is required")
    mode = next((entry["access"] for entry in access if entry["collection"] == call.collection), None)
    if mode is None:
        raise forbidden(f"Access to collection {call.collection} is required")
    _check_mode(mode, call)


def _check_mode(mode: str, call: _Call) -> None:
    manages = call.subpath in ("", REPLICAS) and call.method != "GET"
    if manages or call.subpath.endswith(GLOBAL_ACCESS_SUFFIXES):
        raise forbidden("Global manage access is required")
    if call.writes and mode not in WRITE_MODES:
        raise forbidden(f"Write access to collection {call.collection} is required")
    is_of_points = call.subpath in ("", "exists", "facet") or call.subpath.partition("/")[0] == "points"
    if not is_of_points and mode == "prw":
        raise forbidden(f"Only access to the points of collection {call.collection} is given")


def _presented_secrets(scope: Scope) -> list[bytes]:
    return [
        value if name == b"api-key" else value[len(b"Bearer ") :]
        for name, value in scope["headers"]
        if name == b"api-key" or (name == b"authorization" and value[:7].lower() == b"bearer ")
    ]
