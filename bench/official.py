"""Create the collections, indexes and aliases of many objects with Qdrant's own client, without the product.

`python -m bench.official URL SLUG NAME COUNT < CALLS` reads the calls that created the object SLUG, as JSON lines of
method, target and body. It creates COUNT objects NAME-0000 and so on with them, and prints the seconds.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable
from typing import Any
from urllib.parse import parse_qs

import httpx
import orjson
from qdrant_client import AsyncQdrantClient, models

from agentmemory_operator.runtime.work_queue import LANE_WIDTH


async def main() -> None:
    url, slug, name, count = sys.argv[1:]
    lines = sys.stdin.read().splitlines()
    # By default the client opens a connection for each call to localhost, but keeps those to other hosts.
    limits = httpx.Limits(max_connections=LANE_WIDTH)
    client = AsyncQdrantClient(url=url, timeout=120, check_compatibility=False, limits=limits)
    names = iter([f"{name}-{number:04d}" for number in range(int(count))])

    async def create_objects() -> None:
        # Concurrent lanes share the iterator: each takes the next name.
        for object_name in names:
            for line in lines:
                await perform(client, *orjson.loads(line.replace(slug, object_name)))

    started_s = time.perf_counter()
    await asyncio.gather(*(create_objects() for _ in range(LANE_WIDTH)))
    print(time.perf_counter() - started_s)
    await client.close()


def perform(client: AsyncQdrantClient, method: str, target: str, body: Any) -> Awaitable[Any]:
    """Call the client's method for a request.

    Raises:
        ValueError: If no method is assigned to the request.
    """
    path, _, query = target.partition("?")
    match method, path.split("/")[2:]:
        case "PUT", [collection]:
            vectors, sparse = body.pop("vectors"), body.pop("sparse_vectors", None)
            return client.create_collection(
                collection, vectors_config=models.VectorParams(**vectors), sparse_vectors_config=sparse, **body
            )
        case "PUT", [collection, "index"]:
            is_waited = parse_qs(query).get("wait") == ["true"]
            return client.create_payload_index(collection, body["field_name"], body["field_schema"], wait=is_waited)
        case "POST", ["aliases"]:
            actions = models.ChangeAliasesOperation(**body).actions
            return client.update_collection_aliases(actions)
        case "PATCH", [collection]:
            return client.update_collection(collection, **body)
    raise ValueError(f"no method of the client for {method} {path}")


if __name__ == "__main__":
    asyncio.run(main())
