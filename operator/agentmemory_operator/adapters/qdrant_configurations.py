"""What a server says of a collection, as what makes another one of the same settings."""

from collections.abc import Mapping
from typing import Any

from agentmemory_operator.ports import Json

_SETTINGS = ("hnsw_config", "wal_config", "quantization_config", "strict_mode_config", "metadata")


def configuration_of(config: Mapping[str, Any]) -> Json:
    """Return what makes a collection of the same settings."""
    body = dict(config["params"])
    body |= {name: config[name] for name in _SETTINGS if config.get(name) is not None}
    body["optimizers_config"] = config["optimizer_config"]
    return _without_nulls(body)


def indexes_of(schema: Mapping[str, Any]) -> Json:
    """Return the payload indexes as PUT takes them: field -> schema."""
    return {field: _without_nulls(told.get("params") or {}) or told["data_type"] for field, told in schema.items()}


def _without_nulls(document: Mapping[str, Any]) -> Json:
    return {
        key: _without_nulls(value) if isinstance(value, Mapping) else value
        for key, value in document.items()
        if value is not None
    }
