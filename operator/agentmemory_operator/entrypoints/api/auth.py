"""Who calls: ServiceAccounts in a cluster; in development whoever has one token, or anybody."""

import hmac
import ipaddress
import logging
from typing import Protocol

from agentmemory_operator.domain.access import ANYBODY, Caller
from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.services.callers import Callers
from agentmemory_operator.settings import SettingInvalid, Settings

logger = logging.getLogger(__name__)


class Guard(Protocol):
    """Decides on the Authorization header of a request under `/v1`."""

    async def admit(self, authorization: bytes) -> Caller:
        """Return who calls.

        Raises:
            Unauthenticated: nobody knows.
            TransientError: it cannot be found out for now.
        """
        ...


class OpenGuard:
    """Lets everybody pass."""

    async def admit(self, authorization: bytes) -> Caller:
        """Return anybody."""
        return ANYBODY


class TokenGuard:
    """Demands one fixed bearer token; compares in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    async def admit(self, authorization: bytes) -> Caller:
        """Return anybody who has the token."""
        if not hmac.compare_digest(_bearer_token(authorization), self._token):
            raise Unauthenticated("the token is wrong")
        return ANYBODY


class IdentityGuard:
    """Demands the token of a ServiceAccount."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers

    async def admit(self, authorization: bytes) -> Caller:
        """Return the ServiceAccount."""
        try:
            token = _bearer_token(authorization).decode("ascii")
        except UnicodeDecodeError:
            raise Unauthenticated("the token is not ASCII") from None
        return await self._callers.identify(token)


def _bearer_token(authorization: bytes) -> bytes:
    """Return the token of the header.

    Raises:
        Unauthenticated: there is none.
    """
    scheme, _, token = authorization.partition(b" ")
    if scheme.lower() != b"bearer" or not token.strip():
        raise Unauthenticated("no token: send `Authorization: Bearer TOKEN`")
    return token.strip()


def build_guard(settings: Settings, host: str, *, callers: Callers | None = None) -> Guard:
    """Return the guard that the settings ask for.

    Args:
        host: the address that the API will listen on.
        callers: who knows ServiceAccounts; None without a cluster.

    Raises:
        SettingInvalid: the mode needs a cluster, or would leave the API open to others.
    """
    if settings.auth == "kubernetes":
        if callers is None:
            raise SettingInvalid(
                "AGENTMEMORY_AUTH=kubernetes (the default in a cluster) needs the objects of a cluster: start the API"
                " with --source kubernetes, or set AGENTMEMORY_AUTH=token and AGENTMEMORY_TOKEN"
            )
        return IdentityGuard(callers)
    if settings.auth == "token":
        return TokenGuard(settings.token or "")
    if not is_loopback(host) and not settings.accepts_auth_none:
        message = (
            f"AGENTMEMORY_AUTH=none on {host} would let anybody read and write every memory: listen on 127.0.0.1, set"
            " AGENTMEMORY_AUTH=token and AGENTMEMORY_TOKEN, or accept it with AGENTMEMORY_AUTH_NONE_ACCEPTED=yes"
        )
        raise SettingInvalid(message)
    logger.warning("AGENTMEMORY_AUTH=none: whoever reaches %s may read and write every memory", host)
    return OpenGuard()


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches the address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
