"""Who calls, what a caller may be given, and which hosts may be reached."""

from typing import Protocol

from agentmemory_operator.spec.access import Reviewed


class TokenReviews(Protocol):
    """Whoever knows whose tokens are whose."""

    async def review(self, token: str) -> Reviewed:
        """Whose token it is.

        Raises:
            TransientError: it cannot be found out for now.
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
