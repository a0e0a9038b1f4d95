"""Calls to the API server through the official client's transport: TLS, tokens and their renewal.

Its typed API is not used: the models of the core API alone take 90 MB of memory. Which cluster and namespace a person
means says the kubeconfig's context, as for kubectl; in a pod its own.
"""

import asyncio
import json
import logging
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.request import getproxies

import aiohttp
import yaml
from kubernetes.aio import client, config

from agentmemory_operator import __version__
from agentmemory_operator.errors import AgentMemoryError, Conflict, NotFound, TransientError
from agentmemory_operator.ports.base import Writing

Configuration = client.Configuration
# Who writes, as `metadata.managedFields` tells it, and who asks, as an audit log does.
OPERATOR, API, CLI = "agentmemory-operator", "agentmemory-api", "agentmemory-cli"
# The methods that take `fieldManager`.
_MANAGED = frozenset({"PATCH", "POST", "PUT"})

JSON = "application/json"
# An object, or each of a list, without its content.
METADATA, METADATA_LIST = (
    f"application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1" for suffix in ("", "List")
)
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
NOT_FOUND, CONFLICT, INVALID = 404, 409, 422
# Of what only a person mends.
WAYS_OUT = {
    401: "; the credentials were rejected: log in again, or use another --context",
    403: "; this account lacks that permission: docs/install.md lists the permissions of each role",
}
CALL_TIMEOUT_S = 30
CLOSING_S = 0.1
# Without a proxy, all that the environment could name is a .netrc, which is looked for in a thread at each call. Nobody
# keeps the API server's password there.
SESSION = {"trust_env": bool(getproxies())}

# What a kubeconfig that is missing, broken, or not to be read ends in.
UNREADABLE = (config.ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, ValueError)

# What we say ourselves, with the way out.
logging.getLogger("kubernetes.aio.config.kube_config").setLevel(logging.ERROR)
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE = "default"


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


class KubernetesConflict(KubernetesRejected, Conflict):
    """The object exists already, is another by now, or has changed since it was read; nothing was written."""


class OwnConfiguration(Configuration):
    """How to reach the API server, and which of our programs does.

    Args:
        program: OPERATOR, API or CLI.
    """

    def __init__(self, program: str, **given: Any) -> None:
        super().__init__(**given)
        self.program = program


def program_of(configuration: Configuration) -> str:
    """Which of our programs reaches the API server by a configuration; a person's, where none is named."""
    return configuration.program if isinstance(configuration, OwnConfiguration) else CLI


def user_agent(configuration: Configuration) -> str:
    """How that program names itself in each request."""
    return f"{program_of(configuration)}/{__version__} ({platform.system().lower()}/{platform.machine()})"


async def load_configuration(program: str) -> OwnConfiguration:
    """How to reach the API server: from the pod's ServiceAccount, else from the kubeconfig.

    Args:
        program: OPERATOR, API or CLI.

    Raises:
        AgentMemoryError: there is neither; says what to set.
    """
    configuration = OwnConfiguration(program)
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except UNREADABLE as exc:
            raise AgentMemoryError(_unusable(None, exc)) from exc
    configuration.client_session_kwargs = SESSION
    return configuration


@contextmanager
def mapped_errors(host: str = "") -> Iterator[None]:
    """Turn the transport's exceptions into ours.

    Args:
        host: the API server, as the configuration has it.
    """
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as exc:
        where = f" at {host}" if host else ""
        raise TransientError(f"Kubernetes cannot be reached{where}: {_why(exc)}") from exc


def _why(exc: Exception) -> str:
    """What keeps a call from the API server, and what to look at."""
    match exc:
        case aiohttp.ClientSSLError():
            return "its certificate is not trusted; check certificate-authority in the kubeconfig"
        case aiohttp.ClientConnectorDNSError():
            return "its host name does not resolve; check server in the kubeconfig"
        case aiohttp.ClientConnectorError() | aiohttp.InvalidURL():
            return "connection refused; is it running, and is server in the kubeconfig correct?"
        case TimeoutError():
            return "it does not answer in time; is it reachable from here?"
    return type(exc).__name__


class KubernetesTransport:
    """Sends calls and decodes answers.

    Args:
        before_write: called right before each call that changes something; what it raises stops the call.
        writing: entered around it, until the answer's head has come.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        before_write: Callable[[], None] | None = None,
        writing: Writing = nullcontext,
    ) -> None:
        self._api = client.ApiClient(configuration)
        self._api.user_agent = user_agent(configuration)
        self._host = str(configuration.host)
        self._manager = ("fieldManager", program_of(configuration))
        self._before_write = before_write
        self._writing = writing

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
        content_type: str = JSON,
        query: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """The decoded answer."""
        response = await self.send(method, path, body, content_type=content_type, query=query)
        with mapped_errors():
            return json.loads(await response.read())

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = JSON,
        query: Sequence[tuple[str, str]] = (),
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> aiohttp.ClientResponse:
        """The answer to an accepted call, unread.

        Raises:
            NotFound: 404.
            TransientError: anything else that is no success.
        """
        headers = {"Accept": JSON, "Content-Type": content_type}
        return await self._send(method, path, body, headers, query, timeout_s)

    async def metadata(self, path: str, *, query: Sequence[tuple[str, str]] = (), accept: str = METADATA) -> Any:
        """The metadata of an object, or of each of a list: a small part of what they are.

        Args:
            accept: METADATA or METADATA_LIST.

        Raises:
            NotFound, TransientError: as `send`.
        """
        response = await self._send("GET", path, None, {"Accept": accept}, query, CALL_TIMEOUT_S)
        with mapped_errors():
            return json.loads(await response.read())

    async def _send(
        self,
        method: str,
        path: str,
        body: Any,
        headers: Mapping[str, str],
        query: Sequence[tuple[str, str]],
        timeout_s: float,
    ) -> aiohttp.ClientResponse:
        asked = [*query, self._manager] if method in _MANAGED else [*query]
        with mapped_errors(self._host):
            # It would walk through a body that it knows nothing of: ours are JSON as they stand.
            _, url, sent, *_ = await self._api.param_serialize(
                method, path, query_params=asked, header_params=dict(headers), auth_settings=["BearerToken"]
            )
            if method != "GET" and self._before_write is not None:
                self._before_write()
            async with self._writing() if method != "GET" else nullcontext():
                answer = await self._api.call_api(method, url, sent, body, _request_timeout=timeout_s)
            response: aiohttp.ClientResponse = answer.response
            if response.status < 300:
                return response
            raise _refusal(response.status, await response.read())


def _refusal(status: int, body: bytes) -> NotFound | TransientError:
    """The error for an answer that is no success."""
    try:
        answer = json.loads(body)
        said = str(answer.get("message", ""))[:300]
        causes = bool((answer.get("details") or {}).get("causes"))
    except (ValueError, AttributeError):
        said, causes = "", False
    message = f"Kubernetes answered {status}: {said}{WAYS_OUT.get(status, '')}"
    if status == NOT_FOUND:
        return NotFound(message)
    kind = KubernetesConflict if status == CONFLICT else KubernetesRejected
    return kind(message, status=status, causes=causes) if status < 500 else TransientError(message)


async def load_context(name: str | None) -> tuple[Configuration, str]:
    """How to reach a context's API server, and its namespace.

    Args:
        name: of the kubeconfig; None is the current one, and without a kubeconfig the pod's.

    Raises:
        AgentMemoryError: there is none; says what to set.
    """
    configuration = OwnConfiguration(CLI)
    try:
        await config.load_kube_config(context=name, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts()
    except UNREADABLE as exc:
        if name is None and POD_NAMESPACE.is_file():
            config.load_incluster_config(client_configuration=configuration)
            return configuration, POD_NAMESPACE.read_text(encoding="utf-8").strip()
        raise AgentMemoryError(_unusable(name, exc)) from exc
    chosen = next((item for item in contexts if item["name"] == name), current)
    return configuration, str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)


def _unusable(name: str | None, exc: Exception) -> str:
    """What to do about a kubeconfig that does not lead to a cluster."""
    files = (os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")).split(os.pathsep)
    if not any(Path(file).is_file() for file in files):
        return (
            f"no Kubernetes cluster configured: there is no kubeconfig {' or '.join(files)}; set KUBECONFIG to the file"
        )
    said = " ".join(str(exc).removeprefix("Invalid kube-config file. ").split())
    try:
        known = [str(item["name"]) for item in config.list_kube_config_contexts()[0]]
    except UNREADABLE:
        return f"the kubeconfig is invalid: fix it, or set KUBECONFIG to another file ({said})"
    if name is None or name in known:
        return f"the kubeconfig's context is invalid: fix it, or use another --context ({said})"
    near = get_close_matches(name, known, n=1)
    listed = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
    return f"there is no context {name!r} in the kubeconfig: {listed}"
