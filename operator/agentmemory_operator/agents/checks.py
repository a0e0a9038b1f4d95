"""Checks of a request that need the agent: vectors and types."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agentmemory_operator.agents.directory import Agent
from agentmemory_operator.errors import FieldError, Forbidden
from agentmemory_operator.ports.base import Vector
from agentmemory_operator.spec.memory_types import MemoryType

FLOAT32_MAX, FLOAT32_MIN_NORMAL = 3.4028234663852886e38, 1.1754943508222875e-38

# Between these the engine scales a vector as well as it could be done here; the squares lie far within float32.
SHORT, LONG = 0.01, 100.0


def check_vector(vector: Vector, *, size: int) -> list[FieldError]:
    """What is wrong with a caller's vector: its size, or numbers that the engine cannot store."""
    if len(vector) != size:
        return [FieldError("vector", f"has {len(vector)} dimensions, but the agent's vectors have {size}")]
    fault = vector_fault(vector)
    return [FieldError("vector", fault)] if fault else []


def vector_fault(vector: Vector) -> str:
    """Return why the engine cannot store or compare a vector; empty if it can."""
    if _has_ordinary_length(vector):
        return ""
    largest = max(map(abs, vector))
    if not all(map(math.isfinite, vector)) or largest > FLOAT32_MAX:
        return "contains a number that is not finite or not within float32"
    return "is all zeros: it has no direction" if largest < FLOAT32_MIN_NORMAL else ""


def check_given(vector: Vector | None, agent: Agent) -> list[FieldError]:
    """What is wrong with the vector of what is to be stored, or with there being none."""
    size = agent.source.dimensions
    if vector is not None and not agent.takes_vectors:
        return [FieldError("vector", "must be omitted: this agent embeds content itself")]
    if vector is not None:
        return check_vector(vector, size=size)
    if agent.takes_vectors:
        return [FieldError("vector", f"required with {size} dimensions: this agent has embedding.provider none")]
    return []


def scaled(vector: Vector, *, distance: str) -> Vector:
    """A caller's vector as the engine compares it well: for Cosine not far from length 1.

    The engine scales too, but takes a very short vector as it is and overflows on a very long one.
    """
    if distance != "Cosine" or _has_ordinary_length(vector):
        return vector
    length = math.hypot(*vector)
    return [number / length for number in vector]


def _has_ordinary_length(vector: Vector) -> bool:
    return SHORT <= math.hypot(*vector) <= LONG


def check_types(types: Iterable[str], agent: Agent, *, field: str) -> list[FieldError]:
    """An error for each type that the agent does not know; one that lists none takes any."""
    known = [type_.name for type_ in agent.settings.ranking.types]
    if not known:
        return []
    return [
        FieldError(field, f"{name!r} is not a type of this agent: use one of {', '.join(known)}")
        for name in types
        if name not in known
    ]


def type_of(agent: Agent, name: str) -> MemoryType | None:
    """The rules of a type; None of one that the object does not have any more."""
    return next((type_ for type_ in agent.settings.ranking.endings if type_.name == name), None)


def expiry_errors(kind: MemoryType | None, expires_at: int | None) -> list[FieldError]:
    """An error if memories of the type never expire, and this one should."""
    if expires_at is None or kind is None or not kind.never_expires:
        return []
    rule = f"memories of type {kind.name!r} never expire (types[].immutable without ttl)"
    return [FieldError("expires_at", f"not allowed: {rule}: omit it, or store the memory as another type")]


def is_immutable(agent: Agent, row: Mapping[str, Any]) -> bool:
    """Whether callers may neither supersede nor change a stored memory, by the rules of its type."""
    kind = type_of(agent, row["type"])
    return kind is not None and kind.immutable


def check_deletable(agent: Agent, row: Mapping[str, Any], *, is_admin: bool) -> None:
    """Check that a caller may delete a stored memory.

    Raises:
        Forbidden: Its type is immutable, and the caller is no administrator.
    """
    if is_immutable(agent, row) and not is_admin:
        rule = f"memories of type {row['type']!r} are immutable (types[].immutable)"
        raise Forbidden(f"memory {row['id']} can only be deleted with the verb admin: {rule}")


def check_presence(agent: Agent, *, text: str | None, vector: Sequence[float] | None) -> list[FieldError]:
    """What is wrong with a search's query and vector taken together."""
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
