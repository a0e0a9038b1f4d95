"""User tokens, and their signing keys. A user token is a JSON Web Token after a prefix that no other token has."""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentmemory_operator.errors import Unauthenticated
from agentmemory_operator.ports.access import SigningKey
from agentmemory_operator.spec.caller_rights import DELEGATED_VERBS, MAX_TOKEN_TTL_S, Caller, Delegation

# `jwt` imports all of cryptography, 8 MiB: import it on first use.
if TYPE_CHECKING:
    from jwt.types import Options

PREFIX = "amu_"
ALGORITHM = "HS256"
ISSUER, AUDIENCE = "agentmemory", "agentmemory-user"
KEY_BYTES = 32
# Enough for all claims in base64, with a user id of 256 characters that take 12 bytes each in JSON.
MAX_TOKEN_CHARS = 8192
# Tolerated difference between the clocks of replicas, in seconds.
LEEWAY_S = 5
# The library does not check these times: `_check_times` compares them with `now_s` of `read`.
DECODE_OPTIONS: "Options" = {"verify_exp": False, "verify_iat": False, "require": ["iss", "aud", "sub", "iat", "exp"]}


class JwtUserTokens:
    """Implements ports.UserTokenCodec by JSON Web Tokens, signed with HMAC-SHA256."""

    def sign(self, key: SigningKey, caller: Caller, *, now_s: int, expires_at_s: int) -> str:
        """Encode a signed token for a caller with a delegation; `caller.delegation` must not be None."""
        import jwt

        delegation = caller.delegation
        assert delegation is not None
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": caller.account,
            "iat": now_s,
            "exp": expires_at_s,
            "agent": delegation.agent,
            "namespace": delegation.namespace,
            "uid": delegation.uid,
            "user": delegation.user_id,
            "verbs": sorted(delegation.verbs),
        }
        return PREFIX + jwt.encode(claims, key.secret, algorithm=ALGORITHM, headers={"kid": key.id})

    def is_user_token(self, token: str) -> bool:
        """Return whether a token has the prefix of user tokens. Nothing is verified."""
        return token.startswith(PREFIX)

    def key_id(self, token: str) -> str:
        """Return the id of the signing key in the token header; '' if there is none, or the token is malformed.

        Nothing is verified.
        """
        import jwt

        try:
            return str(jwt.get_unverified_header(_jwt_of(token)).get("kid", ""))
        except (jwt.InvalidTokenError, RecursionError, ValueError):
            return ""

    def read(self, token: str, key: SigningKey, *, now_s: float) -> Caller:
        """Verify a token; return the account that minted it, with the delegation that the token carries.

        Raises:
            Unauthenticated: If the token has expired, is malformed or has a wrong signature. Also if its time of issue
                is in the future, or it was issued for more than an hour. Clocks may differ by 5 s.
        """
        import jwt

        try:
            claims = jwt.decode(
                *(_jwt_of(token), key.secret, [ALGORITHM], DECODE_OPTIONS), audience=AUDIENCE, issuer=ISSUER
            )
        except (jwt.InvalidTokenError, OverflowError, RecursionError, ValueError):
            raise Unauthenticated("the user token is not valid: request a new one") from None
        _check_times(claims, now_s)
        return _caller_of(claims)


def _jwt_of(token: str) -> str:
    if len(token) > MAX_TOKEN_CHARS:
        raise ValueError("too long")
    return token.removeprefix(PREFIX)


def _check_times(claims: Mapping[str, Any], now_s: float) -> None:
    issued_s, expires_s = int(claims["iat"]), int(claims["exp"])
    if issued_s > now_s + LEEWAY_S or expires_s - issued_s > MAX_TOKEN_TTL_S:
        raise Unauthenticated("the user token is not valid: request a new one")
    if expires_s + LEEWAY_S <= now_s:
        raise Unauthenticated("the user token has expired: request a new one")


def _caller_of(claims: Mapping[str, Any]) -> Caller:
    namespace, _, name = claims["sub"].partition("/")
    # Drop unknown verbs: a replica of another version may have signed the token.
    verbs = frozenset(verb for verb in DELEGATED_VERBS if verb in claims["verbs"])
    delegation = Delegation(
        agent=claims["agent"], namespace=claims["namespace"], uid=claims["uid"], user_id=claims["user"], verbs=verbs
    )
    return Caller(namespace, name, is_unbounded=not name, delegation=delegation)


def new_key() -> str:
    """Return 32 random bytes as text, in base64."""
    return base64.b64encode(secrets.token_bytes(KEY_BYTES)).decode()


def parse_key(text: str) -> SigningKey | None:
    """Parse a key; None if the text is no base64, or encodes fewer than 32 bytes. The id is a hash of it."""
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    if len(secret) < KEY_BYTES:
        return None
    return SigningKey(hashlib.sha256(b"agentmemory key id\n" + secret).hexdigest()[:16], secret)
