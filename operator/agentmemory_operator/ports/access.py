"""Who calls, what a caller may be given, and which hosts may be reached."""

from dataclasses import dataclass, field
from typing import Protocol

from agentmemory_operator.spec.access import Caller, Reviewed


class TokenReviews(Protocol):
    """Whoever knows whose tokens are whose."""

    async def review(self, token: str) -> Reviewed:
        """Whose token it is.

        Raises:
            TransientError: it cannot be found out for now.
        """
        ...


@dataclass(frozen=True, slots=True)
class SigningKey:
    """What user tokens are signed with.

    Attributes:
        id: tells it from others, and says nothing of it.
        secret: never logged.
    """

    id: str
    secret: bytes = field(repr=False)


class SigningKeys(Protocol):
    """Where the one key of an installation is kept: every replica of the API finds the same."""

    async def read(self) -> SigningKey:
        """The key that signs now.

        Raises:
            TransientError: there is none yet, or it cannot be read for now.
        """
        ...


class SigningKeyMaker(Protocol):
    """Makes the one key of an installation."""

    async def make_missing(self) -> None:
        """Make a key where there is none; what is there stays.

        Raises:
            TransientError: it cannot be looked for, or written, for now.
        """
        ...


class UserTokenForm(Protocol):
    """How a user token is written; one is a caller with a delegation, and an end."""

    def sign(self, key: SigningKey, caller: Caller, *, now_s: int, expires_at_s: int) -> str:
        """The token of a caller with a delegation."""
        ...

    def is_one(self, token: str) -> bool:
        """Whether a token claims to be a user token, and no ServiceAccount's."""
        ...

    def key_id(self, token: str) -> str:
        """Which key a token claims to be signed with; empty where it says none."""
        ...

    def read(self, token: str, key: SigningKey, *, now_s: float) -> Caller:
        """The caller that a token was minted for.

        Raises:
            Unauthenticated: the key did not sign it, it has ended, or it is none; says which.
        """
        ...


class PointsTokens(Protocol):
    """Tokens for the points of one collection, signed with a server's API key."""

    def mint(self, api_key: str, collection: str, *, expires_at_s: int) -> str | None:
        """A token for the points of one collection or alias; None where the key is a token itself."""
        ...

    def expiry_s(self, token: str, api_key: str, collection: str) -> int | None:
        """When a token ends, Unix seconds; None of what this key did not sign for this collection."""
        ...


class Hosts(Protocol):
    """What is known of where this process may connect."""

    async def check(self, field: str, url: str) -> None:
        """Pass unless it is known that a URL is not connected to.

        Raises:
            SpecInvalid: it is not; names the field.
        """
        ...
