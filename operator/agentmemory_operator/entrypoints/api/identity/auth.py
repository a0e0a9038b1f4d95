"""Who calls: ServiceAccounts in a cluster; in development whoever has one token, or anybody."""

import hmac
import ipaddress
import logging
from typing import Literal, Protocol

from agentmemory_operator.agents.callers import Callers
from agentmemory_operator.agents.user_tokens import UserTokens
from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.settings import SettingInvalid, Settings
from agentmemory_operator.spec.access import ANYBODY, Caller

log = logging.getLogger(__name__)

Address = Literal["loopback", "network"]


class Guard(Protocol):
    """Decides on the Authorization header of a request under `/v1`.

    Attributes:
        serves_anybody_on: where it listens that demands nothing: pages of other sites, whose browser is on a machine
            that reaches us, have to be told by other means (`runtime.rules.web_origin`). None of one that demands a
            token: pages do not have it, and no browser adds it for them.
    """

    serves_anybody_on: Address | None

    def known(self, authorization: bytes) -> Caller | None:
        """Who calls where that is known at once; None leaves it to `admit`.

        Raises:
            Unauthenticated: nobody, as is known.
        """
        ...

    async def admit(self, authorization: bytes) -> Caller:
        """Who calls.

        Raises:
            Unauthenticated: nobody knows.
            TransientError: it cannot be found out for now.
        """
        ...


class OpenGuard:
    """Lets everybody pass."""

    def __init__(self, serves_anybody_on: Address = "loopback") -> None:
        self.serves_anybody_on: Address | None = serves_anybody_on

    def known(self, authorization: bytes) -> Caller | None:
        """Anybody."""
        return ANYBODY

    async def admit(self, authorization: bytes) -> Caller:
        """Anybody."""
        return ANYBODY


class TokenGuard:
    """Demands one fixed bearer token; compares in constant time."""

    serves_anybody_on: Address | None = None

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def known(self, authorization: bytes) -> Caller | None:
        """Anybody who has the token."""
        if not hmac.compare_digest(_bearer_token(authorization), self._token):
            raise Unauthenticated("the token is not valid")
        return ANYBODY

    async def admit(self, authorization: bytes) -> Caller:
        """Anybody who has the token."""
        return self.known(authorization) or ANYBODY


class IdentityGuard:
    """Demands the token of a ServiceAccount."""

    serves_anybody_on: Address | None = None

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    def known(self, authorization: bytes) -> Caller | None:
        """The ServiceAccount where its token was reviewed a while ago."""
        return self._callers.known(_ascii_token(authorization))

    async def admit(self, authorization: bytes) -> Caller:
        """The ServiceAccount."""
        return await self._callers.identify(_ascii_token(authorization))


class UserTokenGuard:
    """Lets user tokens pass beside what another guard lets pass."""

    def __init__(self, guard: Guard, tokens: UserTokens) -> None:
        self._guard = guard
        self._tokens = tokens
        self.serves_anybody_on: Address | None = guard.serves_anybody_on

    def known(self, authorization: bytes) -> Caller | None:
        """The caller of the token, else the one that the other guard knows."""
        token = self._user_token(authorization)
        return self._guard.known(authorization) if token is None else self._tokens.known(token)

    async def admit(self, authorization: bytes) -> Caller:
        """The caller of the token, else the one that the other guard lets pass."""
        token = self._user_token(authorization)
        return await (self._guard.admit(authorization) if token is None else self._tokens.identify(token))

    def _user_token(self, authorization: bytes) -> str | None:
        scheme, _, sent = authorization.partition(b" ")
        token = sent.strip().decode("ascii", "replace")
        return token if scheme.lower() == b"bearer" and self._tokens.form.is_one(token) else None


def _ascii_token(authorization: bytes) -> str:
    try:
        return _bearer_token(authorization).decode("ascii")
    except UnicodeDecodeError:
        raise Unauthenticated("the token is not ASCII") from None


def _bearer_token(authorization: bytes) -> bytes:
    """The token of the header.

    Raises:
        Unauthenticated: there is none.
    """
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise Unauthenticated("no token: send `Authorization: Bearer TOKEN`")
    return token.strip()


def build_guard(settings: Settings, host: str, *, callers: Callers | None = None) -> Guard:
    """The guard that the settings ask for.

    Args:
        host: the address that the API will listen on.
        callers: who knows ServiceAccounts; None without a cluster.

    Raises:
        SettingInvalid: the mode needs a cluster, or would leave the API open to others.
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
    log.warning("AGENTMEMORY_AUTH=none: anybody who can reach %s can read and write all memories", host)
    return OpenGuard("loopback" if is_loopback(host) else "network")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
