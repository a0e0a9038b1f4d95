"""Authenticate callers: ServiceAccount tokens in a cluster; in development one static token, or no authentication.

User tokens are accepted in every mode.
"""

import hmac
import ipaddress
import logging
from typing import Literal, Protocol

from agentmemory_operator.agents.callers import CallerCache
from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.settings import SettingInvalid, Settings
from agentmemory_operator.spec.caller_rights import UNBOUNDED_CALLER, Caller

log = logging.getLogger(__name__)

Address = Literal["loopback", "network"]


class Guard(Protocol):
    """Authenticates the Authorization header of requests under `/v1` and `/mcp`.

    Attributes:
        open_address: Kind of the listen address if no token is required; None if one is. If it is set,
            `runtime.rules.web_origin` must reject requests of foreign web pages, because a browser can reach the API.
            With a token that is unnecessary: pages do not have it, and browsers do not add it.
    """

    open_address: Address | None

    def authenticate_cached(self, authorization: bytes) -> Caller | None:
        """Authenticate from the cache; None if `authenticate` has to be called.

        Raises:
            Unauthenticated: If the token is missing or known to be invalid.
        """
        ...

    async def authenticate(self, authorization: bytes) -> Caller:
        """Authenticate the caller, with a remote call if necessary.

        Raises:
            Unauthenticated: If the token is missing or invalid.
            TransientError: If the token cannot be checked now.
        """
        ...


class OpenGuard:
    """Accepts every request; no token is required."""

    def __init__(self, open_address: Address = "loopback") -> None:
        self.open_address: Address | None = open_address

    def authenticate_cached(self, authorization: bytes) -> Caller | None:
        """Return the anonymous caller, with every verb on every agent."""
        return UNBOUNDED_CALLER

    async def authenticate(self, authorization: bytes) -> Caller:
        """Return the anonymous caller, with every verb on every agent."""
        return UNBOUNDED_CALLER


class TokenGuard:
    """Requires one static bearer token, compared in constant time."""

    open_address: Address | None = None

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def authenticate_cached(self, authorization: bytes) -> Caller | None:
        """Return the anonymous caller if the token is correct; raise Unauthenticated otherwise."""
        if not hmac.compare_digest(_bearer_token(authorization), self._token):
            raise Unauthenticated("the token is not valid")
        return UNBOUNDED_CALLER

    async def authenticate(self, authorization: bytes) -> Caller:
        """Return the anonymous caller if the token is correct; raise Unauthenticated otherwise."""
        return self.authenticate_cached(authorization) or UNBOUNDED_CALLER


class IdentityGuard:
    """Requires the token of a ServiceAccount."""

    open_address: Address | None = None

    def __init__(self, callers: CallerCache) -> None:
        self._callers = callers

    def authenticate_cached(self, authorization: bytes) -> Caller | None:
        """Return the ServiceAccount of a token that was accepted recently; None if it has to be reviewed.

        Raises:
            Unauthenticated: If the token is missing, not ASCII, or was rejected recently.
        """
        return self._callers.find_cached(_ascii_token(authorization))

    async def authenticate(self, authorization: bytes) -> Caller:
        """Return the ServiceAccount of the token, by a token review if it is not cached.

        Raises:
            Unauthenticated: If the token is missing, not ASCII, or invalid.
            TransientError: If the token cannot be reviewed now.
        """
        return await self._callers.identify(_ascii_token(authorization))


class UserTokenGuard:
    """Accepts user tokens, and leaves other tokens to another guard."""

    def __init__(self, guard: Guard, tokens: UserTokens) -> None:
        self._guard = guard
        self._tokens = tokens
        self.open_address: Address | None = guard.open_address

    def authenticate_cached(self, authorization: bytes) -> Caller | None:
        """Return the caller of a user token, or None if its key must be read; other tokens go to the other guard.

        Raises:
            Unauthenticated: If the token is missing or known to be invalid.
        """
        token = self._user_token(authorization)
        return self._guard.authenticate_cached(authorization) if token is None else self._tokens.find_cached(token)

    async def authenticate(self, authorization: bytes) -> Caller:
        """Return the caller of a user token, reading the signing key if needed; other tokens go to the other guard.

        Raises:
            Unauthenticated: If the token is missing or invalid.
            TransientError: If no signing key is available, or the other guard cannot check the token now.
        """
        token = self._user_token(authorization)
        return await (self._guard.authenticate(authorization) if token is None else self._tokens.identify(token))

    def _user_token(self, authorization: bytes) -> str | None:
        scheme, _, credentials = authorization.partition(b" ")
        token = credentials.strip().decode("ascii", "replace")
        return token if scheme.lower() == b"bearer" and self._tokens.codec.is_user_token(token) else None


def _ascii_token(authorization: bytes) -> str:
    try:
        return _bearer_token(authorization).decode("ascii")
    except UnicodeDecodeError:
        raise Unauthenticated("the token is not ASCII") from None


def _bearer_token(authorization: bytes) -> bytes:
    """Return the bearer token of the header.

    Raises:
        Unauthenticated: If the header has none.
    """
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise Unauthenticated("no token: send `Authorization: Bearer TOKEN`")
    return token.strip()


def build_guard(settings: Settings, host: str, *, callers: CallerCache | None = None) -> Guard:
    """Build the guard that the settings select.

    Args:
        host: Listen address of the API.
        callers: Authenticates ServiceAccounts; None outside a cluster.

    Raises:
        SettingInvalid: If the mode needs a cluster, or would expose the API to other machines without authentication.
    """
    if settings.auth == "kubernetes":
        if callers is None:
            raise SettingInvalid(
                "AGENTMEMORY_AUTH=kubernetes (the default in a cluster) needs a cluster: start the API"
                " with --source kubernetes, or set AGENTMEMORY_AUTH=token and AGENTMEMORY_TOKEN"
            )
        return IdentityGuard(callers)
    if settings.auth == "token":
        return TokenGuard(settings.token or "")
    if not is_loopback(host) and not settings.accepts_auth_none:
        message = (
            f"AGENTMEMORY_AUTH=none on {host} would let anybody read and write all memories: listen on 127.0.0.1, set"
            " AGENTMEMORY_AUTH=token and AGENTMEMORY_TOKEN, or accept it with AGENTMEMORY_AUTH_NONE_ACCEPTED=yes"
        )
        raise SettingInvalid(message)
    # Do not warn if the user has accepted this mode and only this machine can reach the API.
    level = logging.INFO if is_loopback(host) and settings.accepts_auth_none else logging.WARNING
    log.log(level, "AGENTMEMORY_AUTH=none: anybody who can reach %s can read and write all memories", host)
    return OpenGuard("loopback" if is_loopback(host) else "network")


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address: a loopback IP address, or `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
