"""Read what an agent remembers of a user with Qdrant's own client: filter, count, and find what is alike.

pip install qdrant-client
python examples/qdrant-client/read.py

QDRANT_URL and QDRANT_TOKEN say where Qdrant is and what opens the agent's points; README.md says how to get a token.
"""

import os
import time
from typing import Any

from qdrant_client import QdrantClient, models

URL = os.environ.get("QDRANT_URL", "http://127.0.0.1:6333")
TOKEN = os.environ.get("QDRANT_TOKEN")
# The alias, and no physical collection: a rebuild or a restore moves it, and a token is for this name alone.
COLLECTION = f"agent_memory_{os.environ.get('EXAMPLE_AGENT', 'support-bot')}"
USER = os.environ.get("EXAMPLE_USER", "ada")
SHOWN = ["id", "type", "tags", "createdAt", "content"]


def of_user(user_id: str, *narrowed: models.FieldCondition) -> models.Filter:
    """Return the filter of what a search of the API can find of a user, narrowed by conditions of your own."""
    is_empty = [
        models.IsEmptyCondition(is_empty=models.PayloadField(key=key)) for key in ("deletedAt", "supersededById")
    ]
    owned = models.FieldCondition(key="userId", match=models.MatchValue(value=user_id))
    pending = models.FieldCondition(key="pending", match=models.MatchValue(value=True))
    expired = models.FieldCondition(key="expiresAt", range=models.Range(lte=time.time() * 1000))
    return models.Filter(must=[owned, *is_empty, *narrowed], must_not=[pending, expired])


def tagged(tag: str) -> models.FieldCondition:
    """Return the condition that a memory has a tag."""
    return models.FieldCondition(key="tags", match=models.MatchValue(value=tag))


def newest(client: QdrantClient, user_id: str, tag: str) -> list[dict[str, Any]]:
    """Return the ten newest memories of a user with a tag."""
    order = models.OrderBy(key="createdAt", direction=models.Direction.DESC)
    points, _ = client.scroll(
        COLLECTION, scroll_filter=of_user(user_id, tagged(tag)), order_by=order, limit=10, with_payload=SHOWN
    )
    return [point.payload or {} for point in points]


def by_type(client: QdrantClient, user_id: str) -> dict[str, int]:
    """Return how many memories of each type a user has; the engine counts."""
    counted = client.facet(COLLECTION, key="type", facet_filter=of_user(user_id), exact=True)
    return {str(hit.value): hit.count for hit in counted.hits}


def alike(client: QdrantClient, user_id: str, memory_id: str) -> list[dict[str, Any]]:
    """Return the user's memories nearest to one of them, which no text has to be embedded for."""
    found = client.query_points(COLLECTION, query=memory_id, query_filter=of_user(user_id), limit=3, with_payload=SHOWN)
    return [point.payload or {} for point in found.points]


def main() -> None:
    """Print what there is about billing, how much of what type, and what is nearest to the newest."""
    client = QdrantClient(url=URL, api_key=TOKEN, check_compatibility=False)
    about_billing = newest(client, USER, "billing")
    for memory in about_billing:
        print(f"billing: {memory['content']!r}")
    for type_, count in sorted(by_type(client, USER).items()):
        print(f"{type_}: {count}")
    if about_billing:
        for memory in alike(client, USER, about_billing[0]["id"]):
            print(f"like the newest: {memory['content']!r}")
    client.close()


if __name__ == "__main__":
    main()
