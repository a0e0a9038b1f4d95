"""Calls to the API server through the official client's transport: TLS, tokens and their renewal.

Its typed API is not used: the models of the core API alone take 90 MB of memory.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import client, config

from agentmemory_operator.errors import AgentMemoryError, NotFound, TransientError

Configuration = client.Configuration

JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
NOT_FOUND, CONFLICT, INVALID = 404, 409, 422
CALL_TIMEOUT_S = 30
CLOSING_S = 0.1
# Without a proxy, all that the environment could name is a .netrc, which is looked for in a thread at each call. Nobody
# keeps the API server's password there.
SESSION = {"trust_env": bool(getproxies())}


class KubernetesRejected(TransientError):
    """The API server refused a call; refusals end when somebody corrects rights or schema.

    Args:
        status: 400..499.
        causes: whether the answer lists fields that are wrong.
    """

    def __init__(self, message: str, *, status: int, causes: bool) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes


async def load_configuration() -> client.Configuration:
    """Return how to reach the API server: from the pod's ServiceAccount, else from the kubeconfig.

    Raises:
        AgentMemoryError: there is neither; says what to set.
    """
    configuration = client.Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except config.ConfigException as exc:
            raise AgentMemoryError(f"no Kubernetes to talk to: set KUBECONFIG or run in a cluster ({exc})") from exc
    configuration.client_session_kwargs = SESSION
    return configuration


@contextmanager
def mapped_errors() -> Iterator[None]:
    """Turn the transport's exceptions into ours."""
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        raise TransientError(f"Kubernetes cannot be reached: {type(exc).__name__}") from exc


class KubernetesTransport:
    """Sends calls and decodes answers.

    Args:
        before_write: called right before each call that changes something; what it raises stops the call.
    """

    def __init__(self, configuration: Configuration, *, before_write: Callable[[], None] | None = None) -> None:
        self._api = client.ApiClient(configuration)
        self._before_write = before_write

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()
        # TLS connections take leave after the session has closed; a loop that ends before drops them half open.
        await asyncio.sleep(CLOSING_S)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        query: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Return the decoded answer."""
        response = await self.send(method, path, body, content_type=content_type, query=query)
        with mapped_errors():
            return json.loads(await response.read())

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
        query: Sequence[tuple[str, str]] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> aiohttp.ClientResponse:
        """Return the answer to an accepted call, unread.

        Raises:
            NotFound: 404.
            TransientError: anything else that is no success.
        """
        headers = {"Accept": "application/json", "Content-Type": content_type}
        with mapped_errors():
            request = await self._api.param_serialize(
                method, path, query_params=list(query), header_params=headers, body=body, auth_settings=["BearerToken"]
            )
            if method != "GET" and self._before_write is not None:
                self._before_write()
            answer = await self._api.call_api(*request, _request_timeout=timeout_s)
            response: aiohttp.ClientResponse = answer.response
            if response.status < 300:
                return response
            raise _refusal(response.status, await response.read())


def _refusal(status: int, body: bytes) -> NotFound | TransientError:
    """Return the error for an answer that is no success."""
    try:
        answer = json.loads(body)
        said = str(answer.get("message", ""))[:300]
        causes = bool((answer.get("details") or {}).get("causes"))
    except (ValueError, AttributeError):
        said, causes = "", False
    message = f"Kubernetes answered {status}: {said}"
    if status == NOT_FOUND:
        return NotFound(message)
    return KubernetesRejected(message, status=status, causes=causes) if status < 500 else TransientError(message)
