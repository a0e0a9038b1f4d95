"""Strict mode as a plan sees it: which limits to set, and which to lift.

A PATCH merges and cannot unset a limit, so one that is no longer asked for is set to a value that allows everything.
"""

from agentmemory_operator.domain.collection import Limit
from agentmemory_operator.domain.index_spec import StrictModeSpec

UNLIMITED = 4_294_967_295
LIFTED: dict[str, Limit] = {
    "max_query_limit": UNLIMITED,
    "search_max_hnsw_ef": UNLIMITED,
    "search_max_oversampling": 1_000_000.0,
    "upsert_max_batchsize": UNLIMITED,
    "search_max_batchsize": UNLIMITED,
    "max_points_count": UNLIMITED,
    "max_payload_index_count": UNLIMITED,
}

Limits = tuple[tuple[str, Limit], ...]


def desired_limits(spec: StrictModeSpec | None) -> Limits | None:
    """Return what the block asks for, None without one: then the limits are not ours."""
    if spec is None:
        return None
    given: dict[str, Limit] = spec.model_dump(exclude_none=True)
    return tuple(sorted(({"enabled": True} | given).items()))


def limits_to_set(desired: Limits | None, live: Limits | None) -> Limits:
    """Return what a PATCH must say; limits that this operator does not offer stay as they are."""
    if not desired:
        return ()
    wanted, has = dict(desired), dict(live or ())
    if wanted["enabled"]:
        wanted |= {name: LIFTED[name] for name in has.keys() & LIFTED.keys() - wanted.keys()}
    return tuple(sorted((name, value) for name, value in wanted.items() if has.get(name) != value))


def limits_in_force(live: Limits | None) -> dict[str, Limit]:
    """Return the limits without those that allow everything; empty while strict mode is off."""
    has = dict(live or ())
    if not has.get("enabled"):
        return {}
    return {name: value for name, value in has.items() if LIFTED.get(name) != value}
