"""The parts of each score of a search, as bars of one scale; and the settings that a search was done with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

WEIGHTS = ("similarity", "recency", "utility")
# Fusion adds these to the similarity, so they are shown in words below the bar.
_SIGNALS = ("similarity", "keyword", "entities", "fused", "confidence_factor", "boost", "age_days", "half_life_days")


@dataclass(frozen=True, slots=True)
class BarPart:
    """A part of a bar.

    Attributes:
        label: Term with its weight, for example '0.5 x similarity 0.81'.
        number: Position of the term in the legend, from 1, which decides its colour.
        x, width: Position and width in per cent of the longest bar.
    """

    name: str
    label: str
    number: int
    x: float
    width: float


def parts_of(explain: Json) -> list[tuple[str, str, float]]:
    """Return name, label and value of each term of a score."""
    weights = explain.get("weights")
    if weights:
        values = {"similarity": explain["fused"], "recency": explain["recency"], "utility": explain["utility"]}
        return [
            (name, f"{weights[name]:g} \u00d7 {name} {values[name]:.3f}", weights[name] * (values[name] or 0.0))
            for name in WEIGHTS
            if values[name] is not None
        ]
    terms = explain.get("terms") or {"score": explain["score"]}
    return [(name, f"{name} {value:.3f}", value) for name, value in terms.items()]


def build_bars(results: Sequence[Json]) -> tuple[list[list[BarPart]], list[str]]:
    """Return the bar of each result, and the names of the terms for the legend. Negative terms have no width."""
    rows = [parts_of(result["explain"]) if result.get("explain") else [] for result in results]
    names = list(dict.fromkeys(name for row in rows for name, _, _ in row))
    longest = max((sum(max(value, 0.0) for _, _, value in row) for row in rows), default=0.0) or 1.0
    bars = []
    for row in rows:
        x, bar = 0.0, []
        for name, label, value in row:
            width = max(value, 0.0) / longest * 100
            bar.append(BarPart(name, label, names.index(name) + 1, round(x, 2), round(width, 2)))
            x += width
        bars.append(bar)
    return bars, names


def list_signals(explain: Json) -> list[tuple[str, float]]:
    """Return the numbers behind a score that are no term of it, with evidence and variables by name."""
    found = [(name.replace("_", " "), explain[name]) for name in _SIGNALS if explain.get(name) is not None]
    for group in ("evidence", "variables"):
        found += [(f"{group.removesuffix('s')} {name}", value) for name, value in (explain.get(group) or {}).items()]
    return found


def read_weights(query: Mapping[str, str]) -> dict[str, float] | None:
    """Return the weights of the sliders, scaled so that they add up to 1. None without all sliders, or if all are 0."""
    try:
        values = [min(max(float(query[f"w_{name}"]), 0.0), 100.0) for name in WEIGHTS]
    except (KeyError, ValueError):
        return None
    total = sum(values)
    # NaN is neither above nor below 0.
    if not total > 0:
        return None
    first, second = round(values[0] / total, 3), round(values[1] / total, 3)
    return dict(zip(WEIGHTS, (first, second, round(1 - first - second, 3)), strict=True))


def render_patch(weights: Mapping[str, float]) -> str:
    """Render the part of an AgentMemory manifest that sets these weights."""
    inline = ", ".join(f"{name}: {weights[name]:g}" for name in WEIGHTS)
    return f"spec:\n  scoring:\n    weights: {{{inline}}}\n"
