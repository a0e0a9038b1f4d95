"""Port for sending webhooks."""

from collections.abc import Mapping
from typing import Protocol


class WebhookSender(Protocol):
    """Posts one event to a URL."""

    async def send(self, field: str, url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        """Post an event; return the reason for a failed delivery, or None on success.

        Args:
            field: Field of the spec with the URL, for messages.
        """
        ...
