"""What the operator hands over to the retrieval API for one agent, and under which names."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

Reference = tuple[str, str, str]
"""Namespace and name of a Secret, and the key in it."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The AgentMemory that something is for."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What the operator gave the retrieval API for one agent.

    Attributes:
        values: by slot; never logged.
        version: changes with every write; empty before the first.
    """

    slug: str
    owner: Owner
    values: Mapping[str, str] = field(repr=False)
    version: str = ""


def slot_of(reference: Reference) -> str:
    """Return the name under which the value of a reference is handed over."""
    return hashlib.sha256("/".join(reference).encode()).hexdigest()[:32]
