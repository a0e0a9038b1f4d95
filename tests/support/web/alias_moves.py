"""An operator that moves an agent to a collection of another embedding model, as far as the retrieval API meets it."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentmemory_operator.collections.rules.announcement import MOVING_KEY, Phase
from agentmemory_operator.collections.rules.collection import METADATA_KEY
from agentmemory_operator.collections.rules.rebuild_record import REBUILD_KEY, RebuildRecord, record_to_json
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.naming import ALIAS_PREFIX
from tests.support.spec.documents import marker_for
from tests.support.web.http_server import well
from tests.support.web.services import embedding_of


@dataclass(frozen=True, slots=True)
class TwoModels:
    """Implements ports.Embedder for the model that a collection names."""

    source: EmbeddingSource

    @property
    def dimensions(self) -> int:
        return self.source.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        await asyncio.sleep(0.001)
        return [told_apart(self.source.model or "", text, self.dimensions) for text in texts]


def told_apart(model: str, text: str, size: int) -> list[float]:
    """Return a vector of length 1 in the model's half of the space: two models have nothing in common."""
    half = size // 2
    raw = [number - 0.5 for number in embedding_of(text, half)]
    length = math.sqrt(sum(number * number for number in raw))
    part, nothing = [number / length for number in raw], [0.0] * half
    return nothing + part if model == "new" else part + nothing


@dataclass(slots=True)
class AliasMover:
    """Moves the alias of an agent from its collection 1 to its collection 2.

    Args:
        announce_s: from the announcement until the last pass; longer than the API's lease.
        size: of the new model's vectors.
    """

    qdrant: httpx.Client
    alias: str
    announce_s: float
    size: int = 8
    carried: int = field(default=0, init=False)

    @property
    def source(self) -> str:
        return f"{self.alias}__1"

    @property
    def target(self) -> str:
        return f"{self.alias}__2"

    @property
    def embedding(self) -> dict[str, Any]:
        """The target's."""
        return {"provider": "openai", "model": "new", "dimensions": self.size}

    def create(self) -> None:
        """Make the target; without indexes, which nothing here is about."""
        record = RebuildRecord(source=self.source, target=self.target, digest="d", begun_ms=0, since_ms=0)
        marker = marker_for(self.alias.removeprefix(ALIAS_PREFIX), embedding=self.embedding)
        metadata = {METADATA_KEY: marker, REBUILD_KEY: record_to_json(record)}
        body = {"vectors": {"size": self.size, "distance": "Cosine"}, "metadata": metadata}
        self._call("PUT", f"/collections/{self.target}", body)

    def carry(self) -> int:
        """Carry over what the target lacks; return how many points that were."""
        there = {point["id"] for point in self.points(self.target)}
        missing = [point for point in self.points(self.source) if point["id"] not in there]
        points = [
            {"id": point["id"], "payload": point["payload"], "vector": self._vector(point["payload"])}
            for point in missing
        ]
        if points:
            body = {"points": points, "update_mode": "insert_only"}
            self._call("PUT", f"/collections/{self.target}/points?wait=true", body)
        self.carried += len(points)
        return len(points)

    def say(self, phase: Phase) -> None:
        """Say in the source how near the move is."""
        moving = {"from": self.source, "to": self.target, "phase": phase, "embedding": self.embedding}
        self._call("PATCH", f"/collections/{self.source}", {"metadata": {MOVING_KEY: moving}})

    def announce(self) -> None:
        """Announce the move, and wait."""
        self.say(Phase.ANNOUNCED)
        time.sleep(self.announce_s)

    def move(self) -> None:
        """Let the alias lead to the target."""
        action = {"create_alias": {"collection_name": self.target, "alias_name": self.alias}}
        self._call("POST", "/collections/aliases", {"actions": [action]})

    def remove(self) -> None:
        """Delete both collections."""
        for collection in (self.source, self.target):
            self._call("DELETE", f"/collections/{collection}", None)

    def points(self, collection: str, *, with_vector: bool = False) -> list[dict[str, Any]]:
        """Return all points of a collection."""
        found: list[dict[str, Any]] = []
        offset = None
        while True:
            body = {"limit": 500, "with_payload": True, "with_vector": with_vector, "offset": offset}
            page = self._call("POST", f"/collections/{collection}/points/scroll", body)
            found += page["points"]
            offset = page["next_page_offset"]
            if offset is None:
                return found

    def _vector(self, payload: dict[str, Any]) -> Any:
        return told_apart("new", payload["content"], self.size) if "content" in payload else {}

    def _call(self, method: str, path: str, body: Any) -> Any:
        return well(self.qdrant.request(method, path, json=body)).json()["result"]
