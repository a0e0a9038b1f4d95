"""Who may call: the development modes `token` and `none`."""

import hmac
import ipaddress
import logging
from typing import Protocol

from agentmemory_operator.entrypoints.api.problems import UNAUTHORIZED, Problem
from agentmemory_operator.settings import SettingInvalid, Settings

logger = logging.getLogger(__name__)


class Guard(Protocol):
    """Decides on the Authorization header of a request under `/v1`."""

    def refusal(self, authorization: bytes) -> Problem | None:
        """Return why the caller may not pass; None lets it pass."""
        ...


class OpenGuard:
    """Lets everybody pass."""

    def refusal(self, authorization: bytes) -> Problem | None:
        """Return None."""
        return None


class TokenGuard:
    """Demands one fixed bearer token; compares in constant time."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def refusal(self, authorization: bytes) -> Problem | None:
        """Return a 401 for a missing, malformed or wrong token."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            return None
        detail = "the token is wrong" if authorization else "no token: send `Authorization: Bearer TOKEN`"
        return Problem(type=UNAUTHORIZED, detail=detail, headers={"WWW-Authenticate": 'Bearer realm="agentmemory"'})


def build_guard(settings: Settings, host: str) -> Guard:
    """Return the guard that the settings ask for.

    Args:
        host: the address that the API will listen on.

    Raises:
        SettingInvalid: the mode is not built, or would leave the API open to others.
    """
    if settings.auth == "kubernetes":
        message = (
            "AGENTMEMORY_AUTH=kubernetes (the default in a cluster) is not built yet: set AGENTMEMORY_AUTH=token and"
            " AGENTMEMORY_TOKEN"
        )
        raise SettingInvalid(message)
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
