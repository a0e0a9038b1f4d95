"""A collection's strict mode: its limits are read, stored and enforced.

For a limit that this server does not enforce, the response is 501, so no test relies on it.
"""

from qdrant_devserver.error_answers import forbidden_in_strict_mode, not_built
from qdrant_devserver.fields import (
    Anything,
    Document,
    Flag,
    Json,
    Number,
    Structure,
    Unsigned,
    read_structure,
)

STRICT_MODE: Structure = {
    "enabled": Flag(),
    "max_query_limit": Unsigned(1),
    "max_timeout": Unsigned(1),
    "unindexed_filtering_retrieve": Flag(),
    "unindexed_filtering_update": Flag(),
    "search_max_hnsw_ef": Unsigned(),
    "search_allow_exact": Flag(),
    "search_max_oversampling": Number(),
    "upsert_max_batchsize": Unsigned(),
    "search_max_batchsize": Unsigned(),
    "max_collection_vector_size_bytes": Unsigned(),
    "read_rate_limit": Unsigned(1),
    "write_rate_limit": Unsigned(1),
    "max_collection_payload_size_bytes": Unsigned(),
    "max_points_count": Unsigned(1),
    "filter_max_conditions": Unsigned(),
    "condition_max_size": Unsigned(),
    "multivector_config": Anything(),
    "sparse_config": Anything(),
    "max_payload_index_count": Unsigned(),
    "max_resident_memory_percent": Unsigned(1, 100),
    "max_disk_usage_percent": Unsigned(1, 100),
}
ENFORCED = frozenset(
    {"enabled", "max_query_limit", "search_max_hnsw_ef", "search_allow_exact", "search_max_oversampling"}
    | {"upsert_max_batchsize", "search_max_batchsize", "max_payload_index_count", "max_points_count"}
)


def read_strict_mode(value: Json) -> Document:
    """Return the strict mode fields that are set.

    Raises:
        ErrorAnswer: 501 for a limit that this server does not enforce.
    """
    fields = read_structure(value, STRICT_MODE, "strict_mode_config")
    # A limit that allows everything needs no enforcement.
    harmless = {
        name for name in ("unindexed_filtering_retrieve", "unindexed_filtering_update") if fields.get(name) is True
    }
    if ignored := sorted(fields.keys() - ENFORCED - harmless):
        raise not_built(f"the strict mode limit {ignored[0]}")
    return fields


def active_limits(configuration: Document) -> Document:
    """Return the limits in force; empty if strict mode is off."""
    strict: Document = configuration.get("strict_mode_config") or {}
    return strict if strict.get("enabled") else {}


def check_limit(limits: Document, name: str, value: float | None, subject: str) -> None:
    """Raise ErrorAnswer (400) if a value exceeds the limit `name`. A limit that is not set allows every value.

    Args:
        limits: Limits in force.
        name: Name of the limit.
        value: Value in the request; None if the request has none.
        subject: Name of the parameter in the request, for the message.
    """
    allowed = limits.get(name)
    if allowed is not None and value is not None and value > allowed:
        message = f'Limit exceeded {value:g} > {allowed:g} for "{subject}"'
        raise forbidden_in_strict_mode(message, f'Reduce the "{subject}" parameter to or below {allowed:g}.')


def check_search(limits: Document, params: Document) -> None:
    """Raise ErrorAnswer (400) for search parameters that strict mode forbids."""
    check_limit(limits, "search_max_hnsw_ef", params.get("hnsw_ef"), "hnsw_ef")
    check_limit(limits, "search_max_oversampling", params.get("quantization", {}).get("oversampling"), "oversampling")
    check_exact(limits, params.get("exact"))


def check_exact(limits: Document, exact: bool | None) -> None:
    """Raise ErrorAnswer (400) if strict mode forbids exact requests and the search, count or facet is exact."""
    if limits.get("search_allow_exact") is False and exact:
        raise forbidden_in_strict_mode("Exact search disabled!", "Set exact=false.")
