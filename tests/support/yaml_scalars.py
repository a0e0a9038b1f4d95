"""Table of plain YAML scalars with their values in kubectl (`tests/golden/yaml_scalars.yaml`)."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_TABLE = Path(__file__).parents[1] / "golden" / "yaml_scalars.yaml"


@dataclass(frozen=True, slots=True)
class Scalar:
    """One row.

    Attributes:
        json: JSON text of its value; None if kubectl rejects the scalar.
    """

    text: str
    json: str | None


def yaml_scalars() -> list[Scalar]:
    return [Scalar(row["scalar"], row.get("json")) for row in yaml.safe_load(_TABLE.read_text())]


def json_value(text: str) -> Any:
    """Return the value of a JSON text as the API server stores it: an integer beyond 64 bits becomes a float."""
    value = json.loads(text)
    return float(value) if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else value
