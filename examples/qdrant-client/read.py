"""Read the memories of a user with Qdrant's own client: filter, count, and find similar ones.

pip install qdrant-client
python examples/qdrant-client/read.py

QDRANT_URL is the address of Qdrant, QDRANT_TOKEN a token for the agent's points; see README.md.
"""

import os
import time
from typing import Any

from qdrant_client import QdrantClient, models

URL = os.environ.get("QDRANT_URL", "http://127.0.0.1:6333")
TOKEN = os.environ.get("QDRANT_TOKEN")
# The alias, not a physical collection: a rebuild or a restore moves it, and a token is valid only for this name.
COLLECTION = f"agent_memory_{os.environ.get('EXAMPLE_AGENT', 'support-bot')}"
USER = os.environ.get("EXAMPLE_USER", "ada")
PAYLOAD_KEYS = ["id", "type", "tags", "createdAt", "content"]


def visible_filter(user_id: str, *conditions: models.FieldCondition) -> models.Filter:
    """Return the filter that the API's searches use, without the TTL of types; `conditions` narrow it."""
    is_empty = [
        models.IsEmptyCondition(is_empty=models.PayloadField(key=key)) for key in ("deletedAt", "supersededById")
    ]
    owned = models.FieldCondition(key="userId", match=models.MatchValue(value=user_id))
    pending = models.FieldCondition(key="pending", match=models.MatchValue(value=True))
    expired = models.FieldCondition(key="expiresAt", range=models.Range(lte=time.time() * 1000))
    return models.Filter(must=[owned, *is_empty, *conditions], must_not=[pending, expired])


def tag_condition(tag: str) -> models.FieldCondition:
    """Return a condition that requires a tag."""
    return models.FieldCondition(key="tags", match=models.MatchValue(value=tag))


def find_newest(client: QdrantClient, user_id: str, tag: str) -> list[dict[str, Any]]:
    """Return the ten newest memories of a user that have a tag."""
    order = models.OrderBy(key="createdAt", direction=models.Direction.DESC)
    points, _ = client.scroll(
        COLLECTION,
        scroll_filter=visible_filter(user_id, tag_condition(tag)),
        order_by=order,
        limit=10,
        with_payload=PAYLOAD_KEYS,
    )
    return [point.payload or {} for point in points]


def count_by_type(client: QdrantClient, user_id: str) -> dict[str, int]:
    """Return the number of memories of a user by type, for at most ten types. Qdrant counts them."""
    facet = client.facet(COLLECTION, key="type", facet_filter=visible_filter(user_id), exact=True)
    return {str(hit.value): hit.count for hit in facet.hits}


def find_similar(client: QdrantClient, user_id: str, memory_id: str) -> list[dict[str, Any]]:
    """Return the three memories of a user that are nearest to one of them. No text is embedded."""
    found = client.query_points(
        COLLECTION, query=memory_id, query_filter=visible_filter(user_id), limit=3, with_payload=PAYLOAD_KEYS
    )
    return [point.payload or {} for point in found.points]


def main() -> None:
    """Print memories about billing, the number by type, and memories similar to the newest about billing."""
    client = QdrantClient(url=URL, api_key=TOKEN, check_compatibility=False)
    billing_memories = find_newest(client, USER, "billing")
    for memory in billing_memories:
        print(f"billing: {memory['content']!r}")
    for type_, count in sorted(count_by_type(client, USER).items()):
        print(f"{type_}: {count}")
    if billing_memories:
        for memory in find_similar(client, USER, billing_memories[0]["id"]):
            print(f"like the newest: {memory['content']!r}")
    client.close()


if __name__ == "__main__":
    main()
