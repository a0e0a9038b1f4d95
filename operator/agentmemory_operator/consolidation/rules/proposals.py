"""Facts that wait for an approval: what is kept of one, and where. Pure.

A proposal lies in the collection of its agent, as a tombstone with the fact beside: whoever reads memories takes it for
something that is gone, it goes wherever the points go, and is erased with its user. After a week or more it goes with
the other tombstones.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentmemory_operator.consolidation.rules.plan import Fact
from agentmemory_operator.memories.rules.filters import Filter, both
from agentmemory_operator.memories.rules.record import RUN_KEY, TOMBSTONE_KEY, Payload

PROPOSAL_KEY = "proposal"

PROPOSED: Filter = {"must": [{"must_not": [{"is_empty": {"key": f"{PROPOSAL_KEY}.content"}}]}]}
"""The filter of proposals."""


def proposed_of(ids: Iterable[str]) -> Filter:
    """The filter of proposals that were made of any of these memories."""
    return both(PROPOSED, {"key": f"{PROPOSAL_KEY}.sources", "match": {"any": list(ids)}})


@dataclass(frozen=True, slots=True)
class Proposal:
    """A fact that waits."""

    id: str
    user_id: str
    run_id: str
    fact: Fact


def proposal_of(fact: Fact, *, id_: str, user_id: str, run_id: str, now_ms: int) -> Payload:
    """The payload of the point that keeps a fact."""
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: now_ms}
    kept = {key: value for key, value in asdict(fact).items() if value is not None}
    own = {"id": id_, "userId": user_id, "rev": 1, "pending": False, RUN_KEY: run_id}
    return own | times | {PROPOSAL_KEY: {key: _plain(value) for key, value in kept.items()}}


def proposal_in(payload: Mapping[str, Any]) -> Proposal | None:
    """The proposal that a point keeps; None of any other, and of one that was not written by us."""
    said: Any = payload.get(PROPOSAL_KEY)
    try:
        kept: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in said.items()}
        return Proposal(payload["id"], payload["userId"], payload[RUN_KEY], Fact(**kept))
    except (AttributeError, KeyError, TypeError):
        return None


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
