"""Model of a cleanup: the removals of a run over all rows at once, from the rules that a run applies to pages."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from agentmemory_operator.lifecycle.rules.cleanup_rules import (
    CleanupRules,
    RemovalReason,
    Row,
    chain_removals,
    removable_chain,
    surplus_of,
    value_rank,
)
from agentmemory_operator.memories.rules.links import predecessors


def plan_removals(rows: Iterable[Row], rules: CleanupRules) -> dict[str, RemovalReason]:
    """Return the removals of a run without concurrent writes, by memory id.

    Args:
        rows: All rows of the agent.
    """
    chains = list(chains_in({row["id"]: row for row in rows}))
    removals = {row["id"]: reason for chain in chains for row, reason in chain_removals(chain, rules)}
    if rules.lifecycle.max_memories_per_user:
        remaining = [[row for row in chain if row["id"] not in removals] for chain in chains]
        removals |= dict.fromkeys(_over_cap([chain for chain in remaining if chain], rules), RemovalReason.OVER_CAP)
    return removals


def chains_in(by_id: Mapping[str, Row]) -> Iterator[list[Row]]:
    """Yield the chains among rows, each oldest first. Predecessors of a merge precede the merged version."""
    for head in by_id.values():
        newer = by_id.get(head.get("supersededById") or "")
        if newer is not None and head["id"] in predecessors(newer):
            continue
        chain = [head]
        for row in chain:
            chain.extend(by_id[before] for before in predecessors(row) if before in by_id)
        yield chain[::-1]


def _over_cap(chains: Sequence[Sequence[Row]], rules: CleanupRules) -> Iterator[str]:
    kept_ids = {chain[-1]["id"] for chain in chains if not removable_chain(chain)}
    user_rows: defaultdict[str, list[Row]] = defaultdict(list)
    for chain in chains:
        user_rows[chain[-1]["userId"]].extend(chain)
    for rows in user_rows.values():
        evictable = [row for row in rows if not row.get("pinned") and row["id"] not in kept_ids]
        evictable.sort(key=lambda row: value_rank(row, rules))
        yield from (row["id"] for row in evictable[: surplus_of(len(rows), rules)])
