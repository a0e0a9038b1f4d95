"""The parts of each score of a search, as bars of one scale; and the settings that a search was done with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

WEIGHTS = ("similarity", "recency", "utility")
# Scores and their parts are float32 in Qdrant.
MIN_PART = 1e-4
# Numbers behind the terms, which are listed below the bar.
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


Part = tuple[str, str, float]
"""Name, label and value of a term of a score."""


def parts_of(explain: Json, settings: Json) -> list[Part]:
    """Return the terms of a score, whose sum is the score without boost and confidence factor.

    Args:
        settings: Settings of the agent, as `GET /v1/agents/{agent}` returns them.
    """
    weights = explain.get("weights")
    if weights:
        others = [_weighted(name, weights[name], explain[name]) for name in WEIGHTS[1:] if explain[name] is not None]
        return split_match(explain, weights["similarity"], settings) + others
    terms = explain.get("terms") or {"score": explain["score"]}
    return [(name, f"{name} {value:.3f}", value) for name, value in terms.items()]


def split_match(explain: Json, weight: float, settings: Json) -> list[Part]:
    """Return what similarity, words, names and evidence add to a score with this weight of the match.

    `search/rules/hybrid.py` and `query_features.py` have the formulas. Ranks are fused as one part, because the
    explanation has no ranks.
    """
    numbers = explain["evidence"] or {}
    strengths = {name: value for name, value in (settings["evidence"] or {}).items() if name in numbers}
    scale = weight / (1 + sum(strengths.values()))
    fusion = settings["keyword"] if explain["keyword"] is not None else None
    if fusion and fusion["method"] == "RRF":
        parts = []
    elif fusion and fusion["method"] == "Score":
        share = fusion["keyword_weight"]
        parts = [_weighted("similarity", scale * (1 - share), explain["similarity"])]
        parts.append(_weighted("words", scale * share, explain["keyword"]))
    else:
        parts = [_weighted("similarity", scale, explain["similarity"])]
    evidence = scale * sum(strength * numbers[name] for name, strength in strengths.items())
    rest = weight * explain["fused"] - sum(value for _, _, value in parts) - evidence
    if rest < -MIN_PART:
        return [_weighted("similarity", weight, explain["fused"])]
    if rest > MIN_PART:
        name = "names" if parts else "similarity and words"
        parts.append((name, f"{name} {rest:.3f}", rest))
    return parts + ([("evidence", f"evidence {evidence:.3f}", evidence)] if strengths else [])


def _weighted(name: str, weight: float, value: float) -> Part:
    return name, f"{round(weight, 3):g} \u00d7 {name} {value:.3f}", weight * value


def build_bars(results: Sequence[Json], settings: Json) -> tuple[list[list[BarPart]], list[str]]:
    """Return the bar of each result, and the names of the terms for the legend.

    A bar is as long as its score, so a better result never has the shorter bar. Negative terms have no width: they
    shorten the others, as boost and confidence factor change the length of all.

    Args:
        settings: As for `parts_of`.
    """
    rows = [parts_of(result["explain"], settings) if result.get("explain") else [] for result in results]
    names = list(dict.fromkeys(name for row in rows for name, _, _ in row))
    scores = [max(result["explain"]["score"], 0.0) if row else 0.0 for result, row in zip(results, rows, strict=True)]
    longest = max(scores, default=0.0) or 1.0
    bars = []
    for row, score in zip(rows, scores, strict=True):
        x, bar = 0.0, []
        positive = sum(max(value, 0.0) for _, _, value in row) or 1.0
        for name, label, value in row:
            width = max(value, 0.0) / positive * score / longest * 100
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
