"""The reconcile matrix, `tests/golden/matrix.yaml`: each parameter of the index, set and unset."""

import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

MATRIX = pathlib.Path(__file__).resolve().parents[1] / "golden" / "matrix.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixRow:
    """One parameter; the attributes are explained in the file."""

    parameter: str
    spec: Mapping[str, Any]
    create: Mapping[str, Any]
    change: Mapping[str, Any] | tuple[Mapping[str, Any], ...] | None
    unset: Mapping[str, Any] | tuple[Mapping[str, Any], ...] | None
    base: Mapping[str, Any] | None = None
    held: bool = False


def load_matrix() -> list[MatrixRow]:
    """Return the rows in order."""
    return [MatrixRow(**entry) for entry in yaml.safe_load(MATRIX.read_text())]


def entries(planned: Any) -> list[dict[str, Any]]:
    """Return the planned changes of a cell as a list."""
    if planned is None:
        return []
    return [dict(change) for change in (planned if isinstance(planned, list) else [planned])]
