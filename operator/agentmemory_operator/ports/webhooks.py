"""Where webhooks are sent."""

from collections.abc import Mapping
from typing import Protocol


class WebhookSender(Protocol):
    """Sends one event to a URL."""

    async def send(self, field: str, url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        """Post it; return why it was not taken, None where it was.

        Args:
            field: of the spec that names the URL.
        """
        ...
