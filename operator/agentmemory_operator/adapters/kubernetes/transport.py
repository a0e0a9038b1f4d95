"""Calls to the API server through the official client's transport: TLS, tokens and their renewal.

The client's typed API is not used, because the models of the core API alone need 90 MB of memory. Commands use cluster
and namespace of the kubeconfig's context, like kubectl. In a pod without a kubeconfig, they use those of the pod.
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
from agentmemory_operator.ports.base import WriteContext

Configuration = client.Configuration
# Names of this package's programs in `metadata.managedFields` and in audit logs.
OPERATOR, API, CLI = "agentmemory-operator", "agentmemory-api", "agentmemory-cli"
# Methods that accept the parameter `fieldManager`.
_MANAGED = frozenset({"PATCH", "POST", "PUT"})

JSON = "application/json"
# Media types for only the metadata of an object or list.
METADATA, METADATA_LIST = (
    f"application/json;as=PartialObjectMetadata{suffix};g=meta.k8s.io;v=v1" for suffix in ("", "List")
)
JSON_PATCH, MERGE_PATCH = "application/json-patch+json", "application/merge-patch+json"
NOT_FOUND, CONFLICT, INVALID = 404, 409, 422
# Remedies for statuses that a retry cannot fix.
REMEDIES = {
    401: "; the credentials were rejected: log in again, or use another --context",
    403: "; this account lacks that permission: docs/install.md lists the permissions of each role",
}
CALL_TIMEOUT_S = 30
CLOSING_S = 0.1
# Use the environment only if it configures a proxy: with it, aiohttp looks for a .netrc file in a thread at each call.
# Such a file has no credentials for the API server.
SESSION = {"trust_env": bool(getproxies())}

# Exceptions for a kubeconfig that is missing, invalid or unreadable.
KUBECONFIG_ERRORS = (config.ConfigException, yaml.YAMLError, OSError, KeyError, TypeError, ValueError)

# Silence the client's warnings, because `_describe_unusable` covers them.
logging.getLogger("kubernetes.aio.config.kube_config").setLevel(logging.ERROR)
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_NAMESPACE = "default"


class KubernetesRejected(TransientError):
    """The API server rejected a call. It is transient, because an administrator can correct permissions or schema.

    Args:
        status: HTTP status from 300 to 499, except 404.
        causes: True if the response lists invalid fields.
    """

    def __init__(self, message: str, *, status: int, causes: bool) -> None:
        super().__init__(message)
        self.status = status
        self.causes = causes


class KubernetesConflict(KubernetesRejected, Conflict):
    """The object exists already, has another uid, or has changed since it was read; nothing was written."""


class OwnConfiguration(Configuration):
    """Address and credentials of the API server, with the name of the program that uses them.

    Args:
        program: OPERATOR, API or CLI.
        options: Options of the client's `Configuration`.
    """

    def __init__(self, program: str, **options: Any) -> None:
        super().__init__(**options)
        self.program = program


def program_of(configuration: Configuration) -> str:
    """Return the program that a configuration is for; CLI if it names none."""
    return configuration.program if isinstance(configuration, OwnConfiguration) else CLI


def user_agent(configuration: Configuration) -> str:
    """Return the User-Agent header of the program that a configuration is for: name, version and platform."""
    return f"{program_of(configuration)}/{__version__} ({platform.system().lower()}/{platform.machine()})"


async def load_configuration(program: str) -> OwnConfiguration:
    """Load the configuration from the pod's ServiceAccount, or else from the kubeconfig.

    Args:
        program: OPERATOR, API or CLI.

    Raises:
        AgentMemoryError: If neither is usable. The message names the remedy.
    """
    configuration = OwnConfiguration(program)
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except KUBECONFIG_ERRORS as exc:
            raise AgentMemoryError(_describe_unusable(None, exc)) from exc
    configuration.client_session_kwargs = SESSION
    return configuration


@contextmanager
def mapped_errors(host: str = "") -> Iterator[None]:
    """Convert the transport's exceptions, and those of a body that is no JSON, into TransientError.

    Args:
        host: URL of the API server, for the message.
    """
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as exc:
        location = f" at {host}" if host else ""
        raise TransientError(f"Kubernetes cannot be reached{location}: {_describe_failure(exc)}") from exc


def _describe_failure(exc: Exception) -> str:
    """Describe the failure of a connection to the API server, with the remedy."""
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
    """Sends calls and decodes responses.

    Args:
        configuration: Address and credentials of the API server.
        before_write: Called right before each call that changes something. An exception stops the call. None: no hook.
        writing: Context to enter around each call that changes something, until the head of the response arrives.
    """

    def __init__(
        self,
        configuration: Configuration,
        *,
        before_write: Callable[[], None] | None = None,
        writing: WriteContext = nullcontext,
    ) -> None:
        self._api = client.ApiClient(configuration)
        self._api.user_agent = user_agent(configuration)
        self._host = str(configuration.host)
        self._manager = ("fieldManager", program_of(configuration))
        self._before_write = before_write
        self._writing = writing

    async def close(self) -> None:
        """Close the connections, and wait 0.1 s for TLS connections."""
        await self._api.close()
        # Wait until TLS connections are closed, too. If the event loop ends earlier, they stay half open.
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
        """Send a call; return the decoded JSON of the response.

        Raises:
            NotFound: On status 404.
            KubernetesRejected: On another status from 300 to 499; KubernetesConflict on 409.
            TransientError: If the API server is unreachable, responds with 5xx, or the body is no JSON.
        """
        response = await self.send(method, path, body, content_type=content_type, query=query)
        with mapped_errors():
            return json.loads(await response.read())

    async def find(self, path: str) -> Any:
        """Return the object at a path, or None if it does not exist.

        Raises:
            KubernetesRejected: On a status from 300 to 499 other than 404.
            TransientError: If the API server is unreachable, responds with 5xx, or the body is no JSON.
        """
        try:
            return await self.call("GET", path)
        except NotFound:
            return None

    async def put(self, folder: str, body: Any) -> Any:
        """Create an object, or replace it by compare-and-set if `body` has a resourceVersion; return it as stored.

        Args:
            folder: URL path of the objects of that kind in the namespace.

        Raises:
            KubernetesConflict: If the object exists, or has changed since it was read.
            TransientError: If the API server is unavailable, or the namespace or the object to replace does not exist.
        """
        metadata = body["metadata"]
        try:
            if metadata.get("resourceVersion"):
                return await self.call("PUT", f"{folder}/{metadata['name']}", body)
            return await self.call("POST", folder, body)
        except NotFound as exc:
            raise TransientError(f"{exc} (does the namespace {folder.split('/')[-2]} exist?)") from exc

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
        """Send a call; return the successful response with an unread body.

        Args:
            timeout_s: Timeout in seconds of the whole call, reading the body included.

        Raises:
            NotFound: On status 404.
            KubernetesRejected: On another status from 300 to 499; KubernetesConflict on 409.
            TransientError: If the API server is unreachable or responds with 5xx.
        """
        headers = {"Accept": JSON, "Content-Type": content_type}
        return await self._send(method, path, body, headers, query, timeout_s)

    async def metadata(self, path: str, *, query: Sequence[tuple[str, str]] = (), accept: str = METADATA) -> Any:
        """Return only the metadata of an object, or of each object of a list, to transfer less data.

        Args:
            path: URL path of the object or list.
            accept: METADATA or METADATA_LIST.

        Raises:
            NotFound, TransientError: Errors of `call`.
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
        parameters = [*query, self._manager] if method in _MANAGED else [*query]
        with mapped_errors(self._host):
            # Do not pass the body, which is plain JSON already, because the client would traverse it.
            _, url, sent_headers, *_ = await self._api.param_serialize(
                method, path, query_params=parameters, header_params=dict(headers), auth_settings=["BearerToken"]
            )
            if method != "GET" and self._before_write is not None:
                self._before_write()
            async with self._writing() if method != "GET" else nullcontext():
                result = await self._api.call_api(method, url, sent_headers, body, _request_timeout=timeout_s)
            response: aiohttp.ClientResponse = result.response
            if response.status < 300:
                return response
            raise _refusal(response.status, await response.read())


def _refusal(status: int, body: bytes) -> NotFound | TransientError:
    """Build the exception for an error response, as `send` lists them; the message quotes up to 300 characters."""
    try:
        status_object = json.loads(body)
        detail = str(status_object.get("message", ""))[:300]
        has_causes = bool((status_object.get("details") or {}).get("causes"))
    except (ValueError, AttributeError):
        detail, has_causes = "", False
    message = f"Kubernetes answered {status}: {detail}{REMEDIES.get(status, '')}"
    if status == NOT_FOUND:
        return NotFound(message)
    kind = KubernetesConflict if status == CONFLICT else KubernetesRejected
    return kind(message, status=status, causes=has_causes) if status < 500 else TransientError(message)


async def load_context(name: str | None) -> tuple[Configuration, str]:
    """Load the configuration and the namespace of a kubeconfig context.

    Args:
        name: Name of the context. None is the current one or, in a pod without a usable kubeconfig, its ServiceAccount.

    Raises:
        AgentMemoryError: If there is no usable context. The message names the remedy.
    """
    configuration = OwnConfiguration(CLI)
    try:
        await config.load_kube_config(context=name, client_configuration=configuration)
        contexts, current = config.list_kube_config_contexts()
    except KUBECONFIG_ERRORS as exc:
        if name is None and POD_NAMESPACE.is_file():
            return _load_in_pod(configuration)
        raise AgentMemoryError(_describe_unusable(name, exc)) from exc
    context = next((item for item in contexts if item["name"] == name), current)
    return configuration, str(context["context"].get("namespace") or DEFAULT_NAMESPACE)


def _load_in_pod(configuration: Configuration) -> tuple[Configuration, str]:
    try:
        config.load_incluster_config(client_configuration=configuration)
        return configuration, POD_NAMESPACE.read_text(encoding="utf-8").strip()
    except KUBECONFIG_ERRORS as exc:
        message = f"there is no usable kubeconfig, and the ServiceAccount of this pod cannot be used: {exc}"
        raise AgentMemoryError(message) from exc


def _describe_unusable(name: str | None, exc: Exception) -> str:
    """Describe a kubeconfig that cannot be used, with the remedy."""
    files = (os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")).split(os.pathsep)
    if not any(Path(file).is_file() for file in files):
        return (
            f"no Kubernetes cluster configured: there is no kubeconfig {' or '.join(files)}; set KUBECONFIG to the file"
        )
    detail = " ".join(str(exc).removeprefix("Invalid kube-config file. ").split())
    try:
        names = [str(item["name"]) for item in config.list_kube_config_contexts()[0]]
    except KUBECONFIG_ERRORS:
        return f"the kubeconfig is invalid: fix it, or set KUBECONFIG to another file ({detail})"
    if name is None or name in names:
        return f"the kubeconfig's context is invalid: fix it, or use another --context ({detail})"
    matches = get_close_matches(name, names, n=1)
    suggestion = f"did you mean {matches[0]}?" if matches else f"it has {', '.join(names) or 'none'}"
    return f"there is no context {name!r} in the kubeconfig: {suggestion}"
