"""`agentmemory dev` and `agentmemory devserver`."""

import asyncio
import importlib
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

from agentmemory_operator.adapters.asgi_server import serving
from agentmemory_operator.adapters.manifest_folder import ManifestFolder
from agentmemory_operator.adapters.qdrant_calls import CallWatch
from agentmemory_operator.entrypoints.following import follow_folder, pass_on
from agentmemory_operator.entrypoints.operating import cancel
from agentmemory_operator.errors import AgentMemoryError
from agentmemory_operator.main.api import Api
from agentmemory_operator.main.embedding import RebuildEmbedders
from agentmemory_operator.main.operator import Operator
from agentmemory_operator.main.processes import LOOPBACK, open_tracer, say, until_stopped
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.services.api_metering import ApiMeter
from agentmemory_operator.services.metering import call_counter
from agentmemory_operator.settings import Settings


async def run_dev(settings: Settings, manifests: Path, data: Path, port: int, qdrant: str | None) -> None:
    """Run dev Qdrant, reconcile of a folder and API in one process, until it is told to stop."""
    async with AsyncExitStack() as stack:
        url, key = qdrant or settings.qdrant_url, settings.qdrant_api_key
        stands_in = "a server that you run" if url else "the dev Qdrant"
        if url is None:
            app = import_devserver().create_app(data)
            url, key = await stack.enter_async_context(serving(app, host=LOOPBACK, port=0)), None
        tracer = open_tracer(settings, stack, service="agentmemory-dev")
        meter, folder = ApiMeter(tracer), ManifestFolder(manifests)
        # Nobody else writes here, and nobody asks for the counts: what is wanted are the traces.
        watch = CallWatch(before_write=lambda: None, count_call=call_counter().add, tracer=tracer)
        stores = Stores(stack, url=url, api_key=key, watch=watch, meter=meter)
        operator = Operator(folder, folder, stores.collections, tracer=tracer)
        cleaning = operator.clean_up(stores.points)
        operator.open_servers(
            stores.server,
            stores.objects,
            max_scratch_gib=settings.max_scratch_gib,
            max_rebuild_gib=settings.max_rebuild_gib,
            snapshots_at_once=settings.snapshots_at_once,
        )
        embedders = RebuildEmbedders(settings, folder)
        stack.push_async_callback(embedders.close)
        operator.rebuild_with(embedders.open, cleaning, at_once=settings.rebuilds_at_once)
        api = Api(settings, folder, stores.points, meter=meter)
        tasks = [
            asyncio.create_task(work)
            for work in (operator.run(), follow_folder(folder, api, operator), pass_on(folder, api, operator))
        ]
        stack.push_async_callback(cancel, *tasks)
        api_url = await stack.enter_async_context(api.serving(LOOPBACK, port))
        say(f"{stands_in} stands in for every QdrantConnection, whatever its url says")
        say(f"Qdrant {url}")
        say(f"API {api_url}")
        await until_stopped(*tasks)


async def run_devserver(data: Path, port: int, version: str) -> None:
    """Run only the dev Qdrant server, until it is told to stop."""
    server = asyncio.create_task(import_devserver().serve(data, port=port, qdrant_version=version))
    try:
        await until_stopped(server)
    finally:
        await cancel(server)


def import_devserver() -> ModuleType:
    """Import the dev Qdrant server: its engine is an optional extra, so only the two verbs that need it do.

    Raises:
        AgentMemoryError: the extra is not installed; says how to get it.
    """
    try:
        return importlib.import_module("agentmemory_operator.devserver")
    except ModuleNotFoundError as exc:
        if exc.name != "qdrant_edge":
            raise
        raise AgentMemoryError(
            "the dev Qdrant needs the engine qdrant-edge: install 'agentmemory-operator[devserver]' (no image has it),"
            " or run `agentmemory dev` with --qdrant URL"
        ) from exc
