"""Checks of a request that need the agent: vectors, types and expiry."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, Forbidden
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.memory_types import MemoryType

FLOAT32_MAX, FLOAT32_MIN_NORMAL = 3.4028234663852886e38, 1.1754943508222875e-38

# Lengths between which Qdrant normalises a vector as precisely as this module does. Squares of such numbers fit
# float32 easily.
MIN_ORDINARY_LENGTH, MAX_ORDINARY_LENGTH = 0.01, 100.0


def check_vector(vector: Vector, *, size: int) -> list[FieldError]:
    """Return the errors of a caller's vector: wrong size, or a fault from `vector_fault`. Empty if valid."""
    if len(vector) != size:
        return [FieldError("vector", f"has {len(vector)} dimensions, but the agent's vectors have {size}")]
    fault = vector_fault(vector)
    return [FieldError("vector", fault)] if fault else []


def vector_fault(vector: Vector) -> str:
    """Return why Qdrant cannot store or compare a vector; empty if it can.

    It cannot if a number is not finite or beyond float32, or if every number is zero or below the normal float32 range.
    """
    if _has_ordinary_length(vector):
        return ""
    largest = max(map(abs, vector))
    if not all(map(math.isfinite, vector)) or largest > FLOAT32_MAX:
        return "contains a number that is not finite or not within float32"
    return "is all zeros: it has no direction" if largest < FLOAT32_MIN_NORMAL else ""


def check_stored_vector(vector: Vector | None, agent: Agent) -> list[FieldError]:
    """Return the errors of a new memory's vector, which the agent's embedding requires or forbids. Empty if valid.

    Args:
        vector: Vector of the request. None if the request has none.
    """
    size = agent.source.dimensions
    if vector is not None and not agent.takes_vectors:
        return [FieldError("vector", "must be omitted: this agent embeds content itself")]
    if vector is not None:
        return check_vector(vector, size=size)
    if agent.takes_vectors:
        return [FieldError("vector", f"required with {size} dimensions: this agent has embedding.provider none")]
    return []


def normalise_vector(vector: Vector, *, distance: str) -> Vector:
    """Normalise a caller's vector for Cosine if it is shorter than 0.01 or longer than 100; else return it unchanged.

    Qdrant normalises too, but leaves a very short vector unchanged and overflows on a very long one. The caller has
    checked the vector with `vector_fault`, because one of all zeros has no direction.
    """
    if distance != "Cosine" or _has_ordinary_length(vector):
        return vector
    length = math.hypot(*vector)
    return [number / length for number in vector]


def _has_ordinary_length(vector: Vector) -> bool:
    return MIN_ORDINARY_LENGTH <= math.hypot(*vector) <= MAX_ORDINARY_LENGTH


def check_types(types: Iterable[str], agent: Agent, *, field: str) -> list[FieldError]:
    """Return an error for each type that the agent does not define. An agent that defines no types accepts any."""
    defined = [type_.name for type_ in agent.settings.ranking.types]
    if not defined:
        return []
    return [
        FieldError(field, f"{name!r} is not a type of this agent: use one of {', '.join(defined)}")
        for name in types
        if name not in defined
    ]


def find_type(agent: Agent, name: str) -> MemoryType | None:
    """Return the rules of a memory type. None if `Ranking.endings` does not contain it."""
    return next((type_ for type_ in agent.settings.ranking.endings if type_.name == name), None)


def expiry_errors(kind: MemoryType | None, expires_at: int | None) -> list[FieldError]:
    """Return an error if memories of the type never expire and `expires_at` is set. Empty if valid.

    Args:
        kind: Rules of the type. None, for an undefined type, permits any expiry.
        expires_at: Requested expiry, Unix milliseconds. None if the request has none.
    """
    if expires_at is None or kind is None or not kind.never_expires:
        return []
    rule = f"memories of type {kind.name!r} never expire (types[].immutable without ttl)"
    return [FieldError("expires_at", f"not allowed: {rule}: omit it, or store the memory as another type")]


def is_immutable(agent: Agent, row: Mapping[str, Any]) -> bool:
    """Return whether a stored memory's type forbids callers to supersede or change it. False for an unknown type."""
    kind = find_type(agent, row["type"])
    return kind is not None and kind.immutable


def check_deletable(agent: Agent, row: Mapping[str, Any], *, is_admin: bool) -> None:
    """Raise unless a caller may delete a stored memory.

    Raises:
        Forbidden: If its type is immutable and the caller is no administrator.
    """
    if is_immutable(agent, row) and not is_admin:
        rule = f"memories of type {row['type']!r} are immutable (types[].immutable)"
        raise Forbidden(f"memory {row['id']} can only be deleted with the verb admin: {rule}")


def check_query(agent: Agent, *, text: str | None, vector: Sequence[float] | None) -> list[FieldError]:
    """Return the errors of a search's query and vector: exactly one is required. Empty if valid.

    An agent without an embedder requires the vector. If it has keyword vectors, it also accepts both.

    Args:
        text, vector: Query and vector of the request. None if the request lacks it.
    """
    if text is not None and vector is not None and agent.takes_vectors and agent.keyword:
        return []
    if (text is None) == (vector is None):
        return [FieldError("query", "give either query or vector, not both or neither")]
    if text is not None and agent.takes_vectors:
        return [
            FieldError(
                "query",
                f"this agent has embedding.provider none: send vector with {agent.source.dimensions} dimensions",
            )
        ]
    return []
