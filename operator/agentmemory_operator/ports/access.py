"""Identities of callers, tokens for callers and for Qdrant, and the check of outgoing hosts."""

from dataclasses import dataclass, field
from typing import Protocol

from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult


class TokenReviews(Protocol):
    """Validates bearer tokens of ServiceAccounts."""

    async def review(self, token: str) -> TokenReviewResult:
        """Validate a token; return its caller, or the reason for the refusal.

        Raises:
            TransientError: If the token cannot be validated now. Retry.
        """
        ...


@dataclass(frozen=True, slots=True)
class SigningKey:
    """Key that signs user tokens.

    Attributes:
        id: Identifier in the token header. It reveals nothing about the secret.
        secret: Key bytes; never logged.
    """

    id: str
    secret: bytes = field(repr=False)


class SigningKeys(Protocol):
    """Reads the signing key of an installation. All replicas of the API read the same key."""

    async def read(self) -> SigningKey:
        """Return the current signing key.

        Raises:
            TransientError: If there is no key yet, or it cannot be read now.
        """
        ...


class SigningKeyMaker(Protocol):
    """Creates the signing key of an installation."""

    async def make_missing(self) -> None:
        """Create the key if there is none; keep an existing key.

        Raises:
            TransientError: If the store cannot be read or written now.
        """
        ...


class UserTokenCodec(Protocol):
    """Encodes and decodes user tokens. A token carries a caller with a delegation, and an expiry time."""

    def sign(self, key: SigningKey, caller: Caller, *, now_s: int, expires_at_s: int) -> str:
        """Encode a signed token for a caller with a delegation; `caller.delegation` must not be None.

        Args:
            now_s: Time of issue in Unix seconds.
            expires_at_s: Expiry in Unix seconds, at most `MAX_TOKEN_TTL_S` after `now_s`: `read` rejects longer ones.
        """
        ...

    def is_user_token(self, token: str) -> bool:
        """Return whether a token has the form of a user token, not that of a ServiceAccount token.

        Nothing is verified.
        """
        ...

    def key_id(self, token: str) -> str:
        """Return the id of the signing key in the token header; '' if there is none, or the token is malformed.

        Nothing is verified.
        """
        ...

    def read(self, token: str, key: SigningKey, *, now_s: float) -> Caller:
        """Verify a token; return the account that minted it, with the delegation that the token carries.

        Args:
            now_s: Current time in Unix seconds.

        Raises:
            Unauthenticated: If the token is malformed, has a wrong signature or too long a lifetime, was issued in the
                future, or has expired. The message only distinguishes an expired token from an invalid one.
        """
        ...


class PointsTokens(Protocol):
    """Tokens for the points of one collection, signed with the API key of a Qdrant server."""

    def mint(self, api_key: str, collection: str, *, expires_at_s: int) -> str | None:
        """Return a token for the points of one collection or alias, or None if `api_key` is itself a token.

        Args:
            expires_at_s: Expiry in Unix seconds.
        """
        ...

    def expiry_s(self, token: str, api_key: str, collection: str) -> int | None:
        """Return the expiry of a token in Unix seconds, even if it is past.

        None if this key did not sign the token, or the token grants anything other than the points of this collection.
        """
        ...


class Hosts(Protocol):
    """Checks URLs against the egress policy of this process."""

    async def check(self, field: str, url: str) -> None:
        """Raise if the policy forbids the host of a URL. A name that cannot be resolved now passes.

        Args:
            field: Field with the URL, for the error message.

        Raises:
            SpecInvalid: If the host or all its addresses are forbidden, or it is no http(s) URL with a host. The
                message names the field.
        """
        ...
