"""Session for calls to a model service: follows no redirect, and sends the key only to the configured URL."""

from agentmemory_operator import __version__
from agentmemory_operator.adapters.http.egress import Egress, HostSession, build_tls_context

# Placeholder for a service without an API key, such as many self-hosted ones: OpenAI's client library requires a key.
NO_KEY = "none"
# Maximum number of connections. It is high, because the retrieval API already limits concurrent requests.
MAX_CONNECTIONS = 512
# Seconds after which idle connections are closed here. Many servers close them after 5 s.
KEEP_ALIVE_S = 4.0


def build_service_session(egress: Egress, url: str, key: str | None, *, field: str) -> HostSession:
    """Build the session for calls to a service.

    Args:
        egress: Policy for outgoing connections.
        url: Base URL of the service.
        key: API key, sent as a bearer token; None sends no `Authorization` header, unless a request has its own.
        field: Field with the URL, for error messages.
    """
    return HostSession(
        *(egress, url),
        field=field,
        proxies=("all",),
        headers={
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": f"agentmemory/{__version__}",
        }
        | ({"Authorization": f"Bearer {key}"} if key else {}),
        limit=MAX_CONNECTIONS,
        keepalive_timeout=KEEP_ALIVE_S,
        ssl=build_tls_context(url, None) or True,
    )
