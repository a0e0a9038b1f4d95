"""Run `agentmemory dev` (dev Qdrant, operator and API in one process) and `agentmemory devserver`."""

import asyncio
import errno
import importlib
import logging
import os
import shlex
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which
from types import ModuleType

from agentmemory_operator.adapters.folder.data_files import FileClaims, FileSigningKey, ensure_cluster_id
from agentmemory_operator.adapters.folder.key_shard_files import FileKeyShards
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.adapters.folder.running_stacks import RunningStack, RunningStacks
from agentmemory_operator.adapters.http.asgi_server import serving
from agentmemory_operator.adapters.qdrant.call_hooks import CallHooks
from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.collections.rules.collection import read_owner
from agentmemory_operator.connections.guarded_secrets import GuardedSecrets
from agentmemory_operator.connections.link import Endpoint
from agentmemory_operator.entrypoints.cli.composition import DevOptions
from agentmemory_operator.entrypoints.cli.program import PROGRAM
from agentmemory_operator.entrypoints.operator.watch_feed import feed_own_changes, follow_folder
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.main.api import Api, ApiEnvironment
from agentmemory_operator.main.consolidation import open_models
from agentmemory_operator.main.dev_folders import DevFolders, check_free, open_folders
from agentmemory_operator.main.egress import build_egress
from agentmemory_operator.main.operator import Operator
from agentmemory_operator.main.operator_ports import OperatorPorts
from agentmemory_operator.main.processes import LOOPBACK, open_tracer, print_line, wait_until_stopped
from agentmemory_operator.main.rebuilds import RebuildEmbedders
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.runtime.tasks import cancel
from agentmemory_operator.settings import AuthMode, Settings
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from agentmemory_operator.spec.printable import printable

log = logging.getLogger(__name__)

# Timeout of each call that looks for collections of other clusters, in seconds.
START_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True)
class ServerOverride:
    """The Qdrant server that replaces the servers of all connections.

    Attributes:
        name: Description for output.
        is_dev_server: True for the dev Qdrant, which should contain only collections of the data folder's cluster id.
    """

    name: str
    url: str
    api_key: str | None
    is_dev_server: bool


async def run_dev(settings: Settings, options: DevOptions) -> None:
    """Run the dev Qdrant, the operator on a folder and the API in one process, until SIGTERM or SIGINT.

    Raises:
        AgentMemoryError: If the folders cannot be created or another stack uses them, the port is in use, the dev
            Qdrant fails, or the dev Qdrant or the OpenTelemetry SDK is needed and not installed.
        SettingInvalid: If `auth` is "kubernetes".
        OSError: If another server uses the data folder of the dev Qdrant, or the API cannot listen for another reason.
    """
    folders, running = open_folders(settings, options), RunningStacks(settings.user_data)
    check_free(folders, running.find())
    async with AsyncExitStack() as stack:
        stand_in = await _open_stand_in(
            options.qdrant or settings.qdrant_url, settings.qdrant_api_key, folders.data, stack
        )
        # Accept `auth` "none": the API listens on loopback only, and the output names who has access.
        serves_mem0, serves_ui = settings.mem0 is not False, settings.ui is not False
        accepting = replace(settings, accepts_auth_none=True, mem0=serves_mem0, ui=serves_ui)
        folder, api, operator = await _compose(accepting, folders, stand_in, stack)
        operations = (operator.run(), follow_folder(folder, api, operator), feed_own_changes(folder, api, operator))
        tasks = [asyncio.create_task(operation) for operation in operations]
        stack.push_async_callback(cancel, *tasks)
        api_url = await stack.enter_async_context(_serving(api, options.port, running))
        _announce(folders, stand_in.url, api_url, running, stack)
        print_locations(folders, stand_in, api_url, serves_ui=serves_ui)
        is_found = settings.api_url is None and len(running.find()) == 1
        first_calls = build_first_calls(None if is_found else api_url)
        announcement = asyncio.create_task(print_first_calls(api, first_calls, folders, settings.auth))
        stack.push_async_callback(cancel, announcement)
        await wait_until_stopped(*tasks)


async def _compose(
    settings: Settings, folders: DevFolders, server: ServerOverride, stack: AsyncExitStack
) -> tuple[ManifestFolder, Api, Operator]:
    """Build the manifest folder, which replaces the Kubernetes API, and the API and the operator on it."""
    data = folders.data
    cluster_id = settings.cluster_id or ensure_cluster_id(data)
    tracer = open_tracer(settings, stack, service="agentmemory-dev")
    meter = ApiMeter(tracer)
    folder = ManifestFolder(folders.manifests, implies_connections=True, identify=lambda: cluster_id)
    # Check no lease, because `check_free` rejects a second operator on these folders. Count no calls, because only
    # traces are used.
    watch = CallHooks(before_write=lambda: None, count_call=lambda method, outcome: None, tracer=tracer)
    egress = build_egress(settings)
    stores = Stores(stack, url=server.url, api_key=server.api_key, watch=watch, meter=meter, egress=egress)
    if server.is_dev_server:
        await _warn_of_foreign_collections(stores, Endpoint(server.url, server.api_key, START_TIMEOUT_S), cluster_id)
    secrets = GuardedSecrets(folder, settings.secret_hosts)
    embedders = RebuildEmbedders(settings, secrets)
    stack.push_async_callback(embedders.close)
    environment = ApiEnvironment(signing_keys=FileSigningKey(data), key_shards=FileKeyShards(data))
    api = Api(settings, folder, stores.points, meter=meter, environment=environment)
    ports = OperatorPorts(
        cluster=folder,
        secrets=secrets,
        claim_store=FileClaims(data / "claims.json"),
        key_shards=environment.key_shards,
        collections=stores.collections,
        points=stores.points,
        server=stores.server,
        objects=stores.objects,
        embedder=embedders.open,
        language_model=open_models(settings, stack),
        egress=egress,
    )
    return folder, api, Operator(ports, settings, publish=api.feed.apply_claims, tracer=tracer)


@asynccontextmanager
async def _serving(api: Api, port: int, running: RunningStacks) -> AsyncIterator[str]:
    """Serve the API on loopback; yield its URL.

    Raises:
        AgentMemoryError: If the port is in use. The message names the stack that uses it, if known.
        OSError: If the API cannot listen for another reason.
    """
    async with AsyncExitStack() as stack:
        try:
            url = await stack.enter_async_context(api.serving(LOOPBACK, port))
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            users = [str(other) for other in running.find() if other.api == f"http://{LOOPBACK}:{port}"]
            holder = users[0] if users else "another program"
            raise AgentMemoryError(
                f"port {port} is taken by {holder}: give another --port, or 0 for any free one"
            ) from exc
        yield url


def _announce(folders: DevFolders, qdrant: str, api: str, running: RunningStacks, stack: AsyncExitStack) -> None:
    """Register the stack for other commands until `stack` is closed. If that fails, log that they need options."""
    found = RunningStack(api=api, qdrant=qdrant, manifests=folders.manifests, data=folders.data, pid=os.getpid())
    try:
        stack.enter_context(running.register(found))
    except OSError as exc:
        log.warning("other commands need --url or --manifests to find this: %s", exc)


async def _open_stand_in(url: str | None, api_key: str | None, data: Path, stack: AsyncExitStack) -> ServerOverride:
    """Return the named server; without one, start the dev Qdrant, which runs until the stack is closed."""
    if url:
        return ServerOverride("your own server", url, api_key, is_dev_server=False)
    app = import_devserver().create_app(data)
    server_url = await stack.enter_async_context(serving(app, host=LOOPBACK, port=0))
    return ServerOverride("the dev Qdrant", server_url, None, is_dev_server=True)


async def _warn_of_foreign_collections(stores: Stores, endpoint: Endpoint, cluster_id: str) -> None:
    """Log other clusters that own collections of the dev Qdrant, and how to serve these collections again."""
    server = stores.server(endpoint)
    try:
        names = [name for name in await server.snapshots.collections() if name.startswith(ALIAS_PREFIX)]
        owners = Counter([read_owner(await server.snapshots.metadata(name))[0] for name in names])
    finally:
        await server.close()
    for owner, count in owners.items():
        if owner not in ("", cluster_id):
            log.warning(
                "%d collections of the development Qdrant belong to cluster %s and are not served or changed; this is"
                " cluster %s. If its id was lost, write %s into the file cluster-id of --data and start again",
                count,
                owner,
                cluster_id,
                owner,
            )


async def run_devserver(data: Path, port: int, version: str) -> None:
    """Run only the dev Qdrant server, until SIGTERM or SIGINT.

    Raises:
        AgentMemoryError: If the server cannot emulate the version, or is not installed.
        OSError: If the port is in use, or another server uses the data folder.
    """
    devserver = import_devserver()
    server = asyncio.create_task(devserver.serve(data, port=port, qdrant_version=version))
    try:
        await wait_until_stopped(server)
    except devserver.UnsupportedVersion as exc:
        raise AgentMemoryError(str(exc)) from exc
    finally:
        await cancel(server)


def import_devserver() -> ModuleType:
    """Import the dev Qdrant server, a separate distribution that only `dev` and `devserver` need.

    Raises:
        AgentMemoryError: If it is not installed. The message gives the remedy.
    """
    try:
        return importlib.import_module("qdrant_devserver.server")
    except ModuleNotFoundError as exc:
        if exc.name != "qdrant_devserver":
            raise
        raise AgentMemoryError(
            "the dev Qdrant is not installed: install 'agentmemory-operator[dev]' (the image does not include it),"
            " or run `agentmemory dev` with --qdrant URL"
        ) from exc


POLL_S, MAX_POLL_S = 0.1, 2.0
ACCESS = {
    "none": "without a token, for everybody on this machine",
    "token": "with the token of AGENTMEMORY_TOKEN: set it in the other terminal too",
}
EXAMPLE_USER, EXAMPLE_MEMORY, EXAMPLE_QUERY = "ada", "Ada drinks tea, never coffee", "what does she drink?"


def print_locations(folders: DevFolders, server: ServerOverride, api_url: str, *, serves_ui: bool = True) -> None:
    """Print the URLs of a stack and its folders, one per line."""
    print_line(f"API {api_url}")
    if serves_ui:
        print_line(f"Explorer {api_url}/ui")
    print_line(f"Docs {api_url}/docs")
    print_line(f"MCP {api_url}/mcp")
    print_line(f"Qdrant {server.url}")
    print_line(f"  {server.name} is used for every QdrantConnection, whatever its URL")
    print_line(f"Data {printable(str(folders.data))}")
    print_line(f"Manifests {printable(str(folders.manifests))}")
    print_line("  watched for changes; the status of each object is in .status there")


async def print_first_calls(api: Api, calls: list[str], folders: DevFolders, auth: AuthMode) -> None:
    """Print who has access and example commands, once an agent is ready. Then wait until cancelled.

    If no agent is declared when the API is ready, first print the command that declares one.

    Args:
        calls: Command lines with the placeholder `{agent}`.
    """
    while api.readiness.find_obstacle() is not None:
        await asyncio.sleep(POLL_S)
    if not api.services.directory.list_settings():
        folder = printable(str(folders.manifests))
        print_line(f"No AgentMemory is declared in {folder}. This writes one, which is served at once:")
        print_line(f"  agentmemory init my-agent --into {shlex.quote(folder)}")
    slug = await _first_agent(api.services.directory)
    print_line(f"Access {ACCESS[auth]}")
    print_line("\nReady. Paste into another terminal:")
    for call in calls:
        print_line(f"  {call.format(agent=slug)}")
    print_line("\nCtrl-C stops it. The memories stay in the data folder.")
    await asyncio.Event().wait()


async def _first_agent(directory: AgentDirectory) -> str:
    """Wait for the first agent, by name, that can be opened and embeds texts itself; return its slug."""
    poll_period_s = POLL_S
    while True:
        for settings in directory.list_settings():
            # Skip an agent that is not ready or whose object is invalid. The log gives the reason.
            with suppress(AgentMemoryError):
                if not (await directory.open(settings.slug)).takes_vectors:
                    return settings.slug
        await asyncio.sleep(poll_period_s)
        poll_period_s = min(2 * poll_period_s, MAX_POLL_S)


def build_first_calls(url: str | None) -> list[str]:
    """Return two command lines with the placeholder `{agent}`: the first stores a memory, the second finds it.

    Args:
        url: URL of the API, added as an option. None if the commands find the API by themselves.
    """
    options = f" --user {EXAMPLE_USER}" + (f" --url {url}" if url else "")
    texts = {"remember": EXAMPLE_MEMORY, "search": EXAMPLE_QUERY}
    return [f'{program_path()} {verb} {{agent}} "{text}"{options}' for verb, text in texts.items()]


def program_path() -> str:
    """Return the command that starts this program in another shell: its name if PATH has it, else with its path."""
    if which(PROGRAM):
        return PROGRAM
    called = Path(sys.argv[0]).absolute()
    if called.stem == PROGRAM:
        return shlex.quote(str(called))
    return f"{shlex.quote(sys.executable)} -m agentmemory_operator"
