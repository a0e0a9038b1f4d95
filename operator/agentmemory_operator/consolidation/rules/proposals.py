"""Facts that wait for an approval, and how they are stored. Pure.

A proposal is a point in the agent's collection: a tombstone with the fact in an additional key. Readers of memories
treat it as deleted, snapshots and rebuilds include it, and erasing its user removes it. It is purged with other
tombstones, after a week or more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentmemory_operator.consolidation.rules.batch_plan import Fact
from agentmemory_operator.memories.rules.filters import Filter, narrow
from agentmemory_operator.memories.rules.record import RUN_KEY, TOMBSTONE_KEY, Payload

PROPOSAL_KEY = "proposal"

IS_PROPOSAL: Filter = {"must": [{"must_not": [{"is_empty": {"key": f"{PROPOSAL_KEY}.content"}}]}]}
"""Filter for proposals."""


def proposals_filter(ids: Iterable[str]) -> Filter:
    """Build the filter for proposals made from any of these memories."""
    return narrow(IS_PROPOSAL, {"key": f"{PROPOSAL_KEY}.sources", "match": {"any": list(ids)}})


@dataclass(frozen=True, slots=True)
class Proposal:
    """Fact that waits for an approval, with the id of the point that stores it, and the run that proposed it."""

    id: str
    user_id: str
    run_id: str
    fact: Fact


def proposal_to_payload(fact: Fact, *, id_: str, user_id: str, run_id: str, now_ms: int) -> Payload:
    """Build the payload of a proposal's point. `now_ms` is the current time in Unix milliseconds."""
    times = {"updatedAt": now_ms, TOMBSTONE_KEY: now_ms}
    fact_fields = {key: value for key, value in asdict(fact).items() if value is not None}
    plain_fields = {key: list(value) if isinstance(value, tuple) else value for key, value in fact_fields.items()}
    identity = {"id": id_, "userId": user_id, "rev": 1, "pending": False, RUN_KEY: run_id}
    return identity | times | {PROPOSAL_KEY: plain_fields}


def proposal_from_payload(payload: Mapping[str, Any]) -> Proposal | None:
    """Parse the proposal in a payload; None if it has none, or a malformed one."""
    stored: Any = payload.get(PROPOSAL_KEY)
    try:
        fields: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
        return Proposal(payload["id"], payload["userId"], payload[RUN_KEY], Fact(**fields))
    except (AttributeError, KeyError, TypeError):
        return None
