"""Write the score of a search result as a calculation from the terms that count (docs/scoring.md)."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import AgentDetails

# Smallest difference that the four decimals of a number show.
MIN_SHOWN = 0.00005


def formula_of(explain: Mapping[str, Any], details: "AgentDetails") -> str:
    """Return the calculation of a score: `0.5 x 0.7 similarity + 0.3 x 0.9 recency`.

    Args:
        explain: Terms of the score, as the API explains it.
        details: Settings of the agent: those that the search used, unless they have changed since.
    """
    score = _score(explain, _match(explain, details), details)
    factors = [(explain["boost"], "boost"), (explain.get("confidence_factor"), "confidence_factor")]
    present = [f"{_number(value)} {name}" for value, name in factors if value not in (None, 1)]
    if present and " + " in score:
        score = f"({score})"
    return " x ".join([*present, score]) + "".join(_remarks(explain))


def _score(explain: Mapping[str, Any], match: str, details: "AgentDetails") -> str:
    """Return the calculation of a score before boost and confidence."""
    model, terms = explain["model"], explain["terms"] or {}
    if model == "Weighted":
        weights = explain["weights"]
        own = ((weights[name], explain[name] or 0.0, name) for name in ("recency", "utility"))
        return _sum([*_weighted(weights["similarity"], match), *_terms(own)])
    if model == "Expression":
        return _sum(_terms((1.0, value, f"[{name}]") for name, value in terms.items()))
    if model == "Priority" and details.priority:
        share = details.priority["similarity_share"]
        rest = _terms([(1 - share, terms["priority"], "priority")])
        return f"{_number(terms['horizon'])} horizon x ({_sum([*_weighted(share, match), *rest])})"
    return " x ".join([match, *(f"{_number(value)} {name}" for name, value in terms.items() if value != 1)])


def _match(explain: Mapping[str, Any], details: "AgentDetails") -> str:
    """Return the calculation of the term that the model uses as similarity: with keywords, the fusion of all signals.

    An expression uses the plain similarity.
    """
    similarity, keyword, fused = explain["similarity"], explain["keyword"], explain["fused"]
    if keyword is None or explain["model"] == "Expression":
        return f"{_number(similarity)} similarity"
    if details.keyword is None or details.keyword["method"] != "Score":
        return f"{_number(fused)} fused"
    weight, evidence = details.keyword["keyword_weight"], explain["evidence"] or {}
    weights = {name: part for name, part in (details.evidence or {}).items() if name in evidence and part}
    whole = 1 + sum(weights.values())
    signals = [(1 - weight, similarity, "similarity"), (weight, keyword, "keyword")]
    signals += [(part, evidence[name], name) for name, part in weights.items()]
    # Entities close a part of the gap between the match and 1. That is no weighted term, so compute it as the rest.
    entities = fused * whole - sum(part * value for part, value, _ in signals)
    signals += [(1.0, entities, "entities")] if entities >= MIN_SHOWN else []
    return f"({_sum(_terms(signals))})" + (f" / {_number(whole)}" if weights else "")


def _terms(parts: Iterable[tuple[float, float, str]]) -> Iterator[str]:
    """Yield the products of a sum, from weight, value and name, without those that are 0."""
    for weight, value, name in parts:
        if abs(value) >= MIN_SHOWN:
            yield from _weighted(weight, f"{_number(value)} {name}")


def _weighted(weight: float, term: str) -> Iterator[str]:
    if weight:
        yield term if weight == 1 else f"{_number(weight)} x {term}"


def _sum(terms: Iterable[str]) -> str:
    return " + ".join(terms) or "0"


def _remarks(explain: Mapping[str, Any]) -> Iterator[str]:
    """Yield age and half-life if recency has a weight and the memory decays, and the score of the cross-encoder."""
    if explain["half_life_days"] and (explain["weights"] or {}).get("recency"):
        yield f" ({_number(explain['age_days'])} days old, half-life {explain['half_life_days']:g})"
    if explain.get("rerank") is not None:
        yield f"; reranked by {_number(explain['rerank'])}"


def _number(value: float) -> str:
    return f"{value:.4f}".rstrip("0").rstrip(".")
