"""Send webhooks within the egress policy and a time limit, without reading response bodies."""

import asyncio
from collections.abc import Mapping

import aiohttp
from yarl import URL

from agentmemory_operator.adapters.http.egress import Egress, HostSession
from agentmemory_operator.errors import SpecInvalid

TIMEOUT_S = 10.0


class HttpWebhookSender:
    """Implements ports.WebhookSender.

    Args:
        egress: Policy for outgoing connections.
        timeout_s: Time limit of one delivery in seconds, connecting included.
    """

    def __init__(self, egress: Egress, *, timeout_s: float = TIMEOUT_S) -> None:
        self._egress = egress
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def send(self, field: str, url: str, body: bytes, headers: Mapping[str, str]) -> str | None:
        """Post an event; return the reason for a failed delivery, or None on success.

        The reason contains nothing from the response but its status.
        """
        try:
            session = HostSession(self._egress, url, field=field, headers=dict(headers), force_close=True, limit=1)
            try:
                response = await session.request("POST", URL(url, encoded=True), data=body, timeout=self._timeout)
                status = response.status
                response.close()
            finally:
                await session.close()
        except SpecInvalid as error:
            return str(error)
        except TimeoutError:
            return f"no answer within {self._timeout.total:g} s"
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            return f"no answer ({type(error).__name__})"
        if 300 <= status < 400:
            return f"it answered {status}: redirects are not followed"
        return None if 200 <= status < 300 else f"it answered {status}"
