"""Sessions of browsers: a token of the API in an encrypted cookie, for at most an hour.

All replicas derive the key of the cookies from the signing key of user tokens, so any replica can read any cookie, and
a replaced signing key ends all sessions. Nothing is stored on the server: signing out removes the cookie only.

Browsers send a cookie to all ports of a host. So its name depends on the key too: two stacks on one host, such as two
of `agentmemory dev`, do not replace each other's sessions.
"""

import base64
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from agentmemory_operator.agents.user_tokens import UserTokens

COOKIE_PREFIX = "agentmemory_ui_"
HOST_PREFIX = "__Host-"
"""Prefix of the cookie's name over TLS: other hosts of the domain cannot set such a cookie (RFC 6265bis, 4.1.3.2)."""
MAX_AGE_S = 3600
# Values that are tried. A page of another path, port or subdomain of the host can add cookies of the same name.
MAX_COOKIES = 8
# Browsers accept 4,096 bytes for a cookie. Encryption makes a token longer by half.
MAX_TOKEN_CHARS = 2_600
_KEY_PURPOSE = b"agentmemory explorer session 1"
_KEY_BYTES, _NAME_BYTES = 32, 4


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """Session of a browser.

    Attributes:
        token: Token of the API; empty before the sign-in, or if the API requires none.
        csrf: Secret in each form of the session. Without it, no request changes anything.
        is_new: True if the browser does not have the cookie yet.
        cookie: Name of the cookie, over TLS without `HOST_PREFIX`.
    """

    token: str = field(default="", repr=False)
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    is_new: bool = field(default=True, compare=False)
    cookie: str = field(default="", compare=False)


class BrowserSessions:
    """Encrypts and decrypts the cookies of sessions.

    Args:
        tokens: Has the signing key from which the key of the cookies is derived, and the clock.
    """

    def __init__(self, tokens: UserTokens) -> None:
        self._tokens = tokens

    async def open(self, headers: Mapping[bytes, bytes]) -> BrowserSession:
        """Return the session of a request; a new one if it has no cookie, or an invalid or expired one.

        Raises:
            TransientError: If the key cannot be read now.
        """
        cipher, cookie = await self._derive()
        for value in _cookies_of(headers.get(b"cookie", b""), cookie.encode()):
            with suppress(InvalidToken):
                content = cipher.decrypt_at_time(value, MAX_AGE_S, self._now_s())
                return BrowserSession(**json.loads(content), is_new=False, cookie=cookie)
        return BrowserSession(cookie=cookie)

    async def seal(self, session: BrowserSession) -> str:
        """Encrypt a session; return the value of its cookie.

        Raises:
            TransientError: If the key cannot be read now.
        """
        content = json.dumps({"token": session.token, "csrf": session.csrf}).encode()
        cipher, _ = await self._derive()
        return cipher.encrypt_at_time(content, self._now_s()).decode()

    async def _derive(self) -> tuple[Fernet, str]:
        """Return the cipher of the cookies, and their name."""
        key = await self._tokens.signing_key()
        derivation = HKDF(algorithm=SHA256(), length=_KEY_BYTES + _NAME_BYTES, salt=None, info=_KEY_PURPOSE)
        derived = derivation.derive(key.secret)
        cipher = Fernet(base64.urlsafe_b64encode(derived[:_KEY_BYTES]))
        return cipher, COOKIE_PREFIX + derived[_KEY_BYTES:].hex()

    def _now_s(self) -> int:
        return self._tokens.clock.now_ms() // 1000


def _cookies_of(header: bytes, cookie: bytes) -> list[bytes]:
    """Return the values of the cookie, first those that no other host can have set."""
    # `SimpleCookie` takes quadratic time, and returns nothing if the cookie of another application is malformed.
    pairs = [pair.strip().partition(b"=") for pair in header.split(b";")]
    names = (HOST_PREFIX.encode() + cookie, cookie)
    return [value for wanted in names for name, _, value in pairs if name == wanted][:MAX_COOKIES]
