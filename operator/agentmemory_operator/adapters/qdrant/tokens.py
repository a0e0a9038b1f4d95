"""Qdrant's access tokens: JWTs signed with an API key, here for the points of one collection only.

Source: qdrant.tech/documentation/security, "Granular access control with JWT". The name is compared as it stands in a
request's path, so a token for an alias works through the alias only, and goes on working when the alias moves.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

# Few servers take tokens, and it brings all of cryptography along, 8 MiB: imported where a key is there.
if TYPE_CHECKING:
    from jwt.types import Options

ALGORITHM = "HS256"
POINTS_ONLY = "prw"
# Whether it has ended is for whoever asks to judge.
SIGNED: "Options" = {"verify_exp": False, "require": ["exp"]}


class QdrantTokens:
    """Implements ports.PointsTokens."""

    def mint(self, api_key: str, collection: str, *, expires_at_s: int) -> str | None:
        """A token for the points of one collection or alias; None where the key is a token itself."""
        if _is_token(api_key):
            return None
        import jwt

        claims = {"sub": collection, "exp": expires_at_s, "access": _access(collection)}
        with _any_key():
            return jwt.encode(claims, api_key, algorithm=ALGORITHM)

    def expiry_s(self, token: str, api_key: str, collection: str) -> int | None:
        """When a token ends; None of what this key did not sign for this collection."""
        import jwt

        try:
            with _any_key():
                claims: dict[str, Any] = jwt.decode(token, api_key, algorithms=[ALGORITHM], options=SIGNED)
        except jwt.InvalidTokenError:
            return None
        return int(claims["exp"]) if claims.get("access") == _access(collection) else None


@contextmanager
def _any_key() -> Iterator[None]:
    """Warn of no short key: how long it is, is for the server's owner to say."""
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
