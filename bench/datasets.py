"""Synthetic, seeded memories: unit vectors around topics of very different sizes, two years of ages, varied use.

Topic k of 200 has a share of 1/k: a user's largest topic has 17 % of all memories, and most topics are small. All
vectors share a common direction, as those of real models do. Two memories of one topic have a cosine of about .67,
those of two topics about .18.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from agentmemory_operator.memories.rules.record import MemoryRecord, hash_content, payload_of
from agentmemory_operator.spec.expression.variables import DAY_MS
from agentmemory_operator.spec.presets import CORTEX

Floats = NDArray[np.float32]
Json = dict[str, Any]

DIMENSIONS = 384
TOPICS = 200
COMMON, NOISE = 0.6, 0.7
OLDEST_DAYS = 730
TYPES = [type_.name for type_ in CORTEX.types]
WORDS = [
    "ticket", "invoice", "order", "refund", "account", "printer", "address", "delivery", "contract", "meeting",
    "router", "password", "update", "broken", "prefers", "asked", "called", "agreed", "moved", "changed", "works",
    "needs", "wants", "likes", "before", "after", "again", "always", "monday", "office", "berlin",
]  # fmt: skip
# Memories that no search may return, so that their filter conditions take part in the measurement.
EXPIRED_SHARE = SUPERSEDED_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Memories of one collection. Every array has one element for each memory.

    Attributes:
        centres: Directions of the topics.
        user: Number of the owner, 0..users - 1.
    """

    slug: str
    users: int
    now_ms: int
    centres: Floats
    vectors: Floats
    user: NDArray[np.int64]
    type: NDArray[np.int64]
    age_ms: NDArray[np.int64]
    importance: NDArray[np.float64]
    access_count: NDArray[np.int64]
    is_expired: NDArray[np.bool_]
    is_superseded: NDArray[np.bool_]
    words: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def alias(self) -> str:
        return f"agent_memory_{self.slug}"

    @property
    def created_at(self) -> NDArray[np.int64]:
        return self.now_ms - self.age_ms

    def id(self, row: int) -> str:
        return str(UUID(int=(7 << 76) + (2 << 62) + row))

    def user_name(self, number: int) -> str:
        return f"user-{number}-of-{self.users}"

    def distributed_to(self, users: int) -> "Dataset":
        """Return the same memories, distributed evenly over `users` users."""
        return replace(self, users=users, user=np.arange(len(self)) % users)

    def all_visible(self) -> "Dataset":
        """Return the same memories, none of them expired or superseded."""
        nothing = np.zeros(len(self), dtype=np.bool_)
        return replace(self, is_expired=nothing, is_superseded=nothing)

    def content(self, row: int) -> str:
        return f"{row}: " + " ".join(WORDS[word] for word in self.words[row])

    def record(self, row: int) -> MemoryRecord:
        created_at, content = int(self.created_at[row]), self.content(row)
        return MemoryRecord(
            id=self.id(row),
            agent_id=self.slug,
            user_id=self.user_name(self.user[row]),
            type=TYPES[self.type[row]],
            content=content,
            created_at=created_at,
            updated_at=self.now_ms,
            importance=float(self.importance[row]),
            session_id=f"session-{row // 20}",
            tags=("bench", f"tag-{row % 50}"),
            metadata={"row": row},
            access_count=int(self.access_count[row]),
            expires_at=self.now_ms - DAY_MS if self.is_expired[row] else None,
            superseded_by_id=self.id(row + 1) if self.is_superseded[row] else None,
            superseded_at=self.now_ms if self.is_superseded[row] else None,
            content_hash=hash_content(content),
        )

    def points(self, start: int, end: int) -> list[Json]:
        """Return rows as points, in the product's payload format."""
        rows = range(start, min(end, len(self)))
        return [{"id": self.id(r), "vector": self.vectors[r], "payload": payload_of(self.record(r))} for r in rows]

    def questions(self, count: int) -> Iterator[tuple[int, Floats]]:
        """Yield users in turn, each with a vector near a topic. Large topics are more frequent."""
        generator = np.random.default_rng(1)
        vectors = _around(self.centres, _topics(generator, count), generator)
        return ((index % self.users, vector) for index, vector in enumerate(vectors))


def make_dataset(slug: str, *, size: int, users: int, now_ms: int) -> Dataset:
    generator = np.random.default_rng(size + users)
    common = generator.standard_normal(DIMENSIONS)
    centres = _unit(COMMON * common + generator.standard_normal((TOPICS, DIMENSIONS)))
    return Dataset(
        slug=slug,
        users=users,
        now_ms=now_ms,
        centres=centres,
        vectors=_around(centres, _topics(generator, size), generator),
        user=np.arange(size) % users,
        type=generator.integers(0, len(TYPES), size),
        age_ms=generator.integers(0, OLDEST_DAYS * DAY_MS, size),
        importance=np.round(generator.random(size), 2),
        access_count=np.minimum(generator.zipf(1.6, size) - 1, 1_000),
        is_expired=generator.random(size) < EXPIRED_SHARE,
        is_superseded=generator.random(size) < SUPERSEDED_SHARE,
        words=generator.integers(0, len(WORDS), (size, 18)),
    )


def _topics(generator: np.random.Generator, count: int) -> NDArray[np.int64]:
    shares = 1 / np.arange(1, TOPICS + 1)
    return generator.choice(TOPICS, count, p=shares / shares.sum())


def _around(centres: Floats, topics: NDArray[np.int64], generator: np.random.Generator) -> Floats:
    noise = generator.standard_normal((len(topics), DIMENSIONS), dtype=np.float32) * np.float32(NOISE / DIMENSIONS**0.5)
    return _unit(centres[topics] + noise)


def _unit(vectors: NDArray[Any]) -> Floats:
    unit: Floats = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit
