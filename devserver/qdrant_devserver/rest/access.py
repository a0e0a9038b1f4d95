"""Who gets in: the API key, and where asked for, tokens signed with it (HS256) that open some collections only.

As qdrant.tech/documentation/security says, "Granular access control with JWT"; recorded of a real server: a token is
compared with the name that stands in the path, so one for an alias opens the alias and not what lies behind it.
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
# Posted, these change nothing.
READING = frozenset({"points", "points/query", "points/query/batch", "points/scroll", "points/count", "facet"})
WRITERS = frozenset({"rw", "prw"})
# What makes a collection, takes its points away, or moves its replicas.
MANAGING = ("snapshots/recover", "snapshots/upload")
REPLICAS = "cluster"
# No name server of somebody else answers for `localhost` or a name under it (RFC 6761, 6.3).
LOCAL_HOST = re.compile(rb"(?:(?:[\w.-]+\.)?localhost\.?|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?")
# What a browser says of the page that sends: of this origin, or nobody's, as a typed address.
OWN_SITES = (b"same-origin", b"none")
SHOWN_CHARS = 100


class OwnMachine:
    """Refuses what a page of another site sends: a browser on this machine reaches us, and there is no key to know."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if no such page sends it."""
        if scope["type"] == "http" and (why := why_foreign(dict(scope["headers"]), scheme=scope["scheme"])):
            await error_response(forbidden(why), time.perf_counter())(scope, receive, send)
            return
        await self._app(scope, receive, send)


def why_foreign(headers: Mapping[bytes, bytes], *, scheme: str) -> str | None:
    """What shows that a web page of another site sends a request; None of one that may pass.

    A page may send requests to loopback, and by a name of its own that leads there (DNS rebinding) read the answers
    too. It does not choose these headers: the browser writes them, and other clients send `Host` alone.

    Source: https://fetch.spec.whatwg.org/#origin-header, https://www.w3.org/TR/fetch-metadata/.
    """
    host = headers.get(b"host", b"").lower()
    if not LOCAL_HOST.fullmatch(host):
        return f"Host is {_shown(host)}: this server only serves its own machine; use localhost, 127.0.0.1 or [::1]"
    origin = headers.get(b"origin")
    if origin is not None and origin.lower() != scheme.encode() + b"://" + host:
        return (
            f"Origin is {_shown(origin)}, not that of {_shown(host)}: requests from pages of other sites are rejected"
        )
    site = headers.get(b"sec-fetch-site", b"none")
    if site not in OWN_SITES:
        return f"Sec-Fetch-Site is {_shown(site)}: requests from pages of other sites are rejected"
    return None


def _shown(value: bytes) -> str:
    return ascii(value.decode("latin-1")[:SHOWN_CHARS])


class KeyGuard:
    """Refuses requests without the key, or beyond what their token opens.

    Args:
        has_jwt_rbac: tokens are taken too.
    """

    def __init__(self, app: ASGIApp, api_key: str, *, has_jwt_rbac: bool = False) -> None:
        self._app = app
        self._key = api_key
        self._has_jwt_rbac = has_jwt_rbac

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on if it may."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        given = _given(scope)
        if any(hmac.compare_digest(value, self._key.encode()) for value in given):
            await self._app(scope, receive, send)
            return
        claims = next(filter(None, map(self._claims, given)), None) if self._has_jwt_rbac else None
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
        """What the token claims, None of what the key did not sign or what has ended."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", InsecureKeyLengthWarning)
                return jwt.decode(token, self._key, algorithms=["HS256"], leeway=LEEWAY_S, options=SIGNED)
        except jwt.InvalidTokenError:
            return None


@dataclass(frozen=True, slots=True)
class _Call:
    """What a request is about.

    Attributes:
        collection: as the path names it; empty of what concerns the whole server.
        rest: of the path behind it.
    """

    method: str
    collection: str
    rest: str

    @classmethod
    def of(cls, method: str, path: str) -> "_Call":
        first, _, named = path.removeprefix("/").partition("/")
        collection, _, rest = named.partition("/")
        is_of_collection = first == "collections" and collection not in ("", "aliases")
        return cls(method, collection if is_of_collection else "", rest)

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET" and not (self.method == "POST" and self.rest in READING)


def _check(claims: dict[str, Any], call: _Call) -> None:
    """Pass where the claims allow the call.

    Raises:
        ErrorAnswer: 403 where they do not, 501 for claims that this server cannot judge.
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
    manages = call.rest in ("", REPLICAS) and call.method != "GET"
    if manages or call.rest.endswith(MANAGING):
        raise forbidden("Global manage access is required")
    if call.writes and mode not in WRITERS:
        raise forbidden(f"Write access to collection {call.collection} is required")
    is_of_points = call.rest in ("", "exists", "facet") or call.rest.partition("/")[0] == "points"
    if not is_of_points and mode == "prw":
        raise forbidden(f"Only access to the points of collection {call.collection} is given")


def _given(scope: Scope) -> list[bytes]:
    return [
        value if name == b"api-key" else value[len(b"Bearer ") :]
        for name, value in scope["headers"]
        if name == b"api-key" or (name == b"authorization" and value[:7].lower() == b"bearer ")
    ]
