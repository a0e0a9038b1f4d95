"""Run the retrieval API on a folder of manifests, for `agentmemory api --source files`."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from agentmemory_operator.adapters.folder.data_files import FileSigningKey, read_cluster_id
from agentmemory_operator.adapters.folder.key_shard_files import FileKeyShards
from agentmemory_operator.adapters.folder.manifest_folder import ManifestFolder
from agentmemory_operator.entrypoints.cli.composition import ApiOptions
from agentmemory_operator.entrypoints.operator.watch_feed import follow_folder
from agentmemory_operator.main.api import API_SERVICE, Api, ApiEnvironment
from agentmemory_operator.main.egress import build_egress
from agentmemory_operator.main.processes import default_host, open_tracer, print_line, wait_until_stopped
from agentmemory_operator.main.stores import Stores
from agentmemory_operator.runtime.metrics_api import ApiMeter
from agentmemory_operator.runtime.tasks import cancel
from agentmemory_operator.settings import Settings


async def run_api_files(settings: Settings, options: ApiOptions, manifests: Path, data: Path) -> None:
    """Run the retrieval API on a folder of manifests, until SIGTERM or SIGINT.

    It creates no collections: another process, such as `agentmemory dev`, must have done so.

    Args:
        data: Data folder of that process. It contains the cluster id in the collections' markers, the data keys of
            privacy zones and the key of user tokens.

    Raises:
        AgentMemoryError, SettingInvalid, OSError: As in `Api.serving`.
    """
    async with AsyncExitStack() as stack:
        identify = partial(read_cluster_id, data)
        folder = ManifestFolder(
            manifests, keeps_status=False, implies_connections=True, identify=lambda: settings.cluster_id or identify()
        )
        meter = ApiMeter(open_tracer(settings, stack, service=API_SERVICE))
        url, key = settings.qdrant_url, settings.qdrant_api_key
        stores = Stores(stack, url=url, api_key=key, meter=meter, egress=build_egress(settings))
        environment = ApiEnvironment(signing_keys=FileSigningKey(data), key_shards=FileKeyShards(data))
        api = Api(settings, folder, stores.points, meter=meter, environment=environment)
        following = asyncio.create_task(follow_folder(folder, api, None))
        stack.push_async_callback(cancel, following)
        host = options.host or default_host(settings)
        url = await stack.enter_async_context(api.serving(host, options.port, options.tls))
        print_line(f"API {url}")
        await wait_until_stopped(following)
