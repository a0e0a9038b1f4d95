"""Qdrant access tokens: JWTs signed with a server's API key, here restricted to the points of one collection.

Source: qdrant.tech/documentation/security, "Granular access control with JWT". Qdrant compares the name as written in
the request path. So a token for an alias works only through that alias, and stays valid when the alias moves.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

# Import `jwt` on first use: it imports all of cryptography, 8 MiB, and few servers use tokens.
if TYPE_CHECKING:
    from jwt.types import Options

ALGORITHM = "HS256"
POINTS_ONLY = "prw"
# Require an expiry, but do not check it: the caller does.
DECODE_OPTIONS: "Options" = {"verify_exp": False, "require": ["exp"]}


class QdrantTokens:
    """Implements ports.PointsTokens by JSON Web Tokens, which the Qdrant server verifies with its API key."""

    def mint(self, api_key: str, collection: str, *, expires_at_s: int) -> str | None:
        """Return a token for the points of one collection or alias, or None if `api_key` is itself a token."""
        if _is_token(api_key):
            return None
        import jwt

        claims = {"sub": collection, "exp": expires_at_s, "access": _access(collection)}
        with _any_key():
            return jwt.encode(claims, api_key, algorithm=ALGORITHM)

    def expiry_s(self, token: str, api_key: str, collection: str) -> int | None:
        """Return the expiry of a token in Unix seconds, even if it is past.

        None if this key did not sign it, or it grants anything other than the points of this collection.
        """
        import jwt

        try:
            with _any_key():
                claims: dict[str, Any] = jwt.decode(token, api_key, algorithms=[ALGORITHM], options=DECODE_OPTIONS)
        except jwt.InvalidTokenError:
            return None
        return int(claims["exp"]) if claims.get("access") == _access(collection) else None


@contextmanager
def _any_key() -> Iterator[None]:
    """Suppress the warning about short keys: the server's owner chooses the length."""
    from jwt.warnings import InsecureKeyLengthWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureKeyLengthWarning)
        yield


def _is_token(api_key: str) -> bool:
    import jwt

    try:
        jwt.get_unverified_header(api_key)
    except jwt.InvalidTokenError:
        return False
    return True


def _access(collection: str) -> list[dict[str, str]]:
    return [{"collection": collection, "access": POINTS_ONLY}]
