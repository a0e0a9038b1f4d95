"""What of a pass people are told in Events: only what is news against the status before."""

from collections.abc import Iterator

from agentmemory_operator.domain.outcomes import Reconciled
from agentmemory_operator.domain.planning import WakeOptimizers
from agentmemory_operator.domain.reporting import describe_change
from agentmemory_operator.ports import Event, Json


def events_of(done: Reconciled, *, old: Json, new: Json) -> Iterator[Event]:
    """Yield the events of a pass.

    Args:
        done: what the pass came to.
        old, new: the status before and after.
    """
    if applied := [change for change in done.applied.changes if not isinstance(change, WakeOptimizers)]:
        yield Event("Normal", "Applied", "; ".join(map(describe_change, applied)))
    if done.is_woken and not (old.get("collection") or {}).get("wokenAt"):
        yield Event("Normal", "OptimizersWoken", _woken(done))
    if done.refusal and old.get("plan") != new.get("plan"):
        yield Event("Warning", done.refusal.reason, done.refusal.message)


def _woken(done: Reconciled) -> str:
    observed = done.observed
    return (
        f"{observed.physical} was grey: since a restart of Qdrant its optimizers waited for an update; woken, with "
        f"{observed.indexed} of about {observed.points} vectors in the graph"
    )
