"""Port for sending webhooks."""

from collections.abc import Mapping
from typing import Protocol


class WebhookSender(Protocol):
    """Posts events to the URLs of webhooks."""

    async def send(self, field: str, url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        """Post an event; return the reason for a failed delivery, or None on success. A failure does not raise.

        Args:
            field: Field of the spec with the URL, for messages.
            body: Body of the request, which the headers may sign.
        """
        ...
