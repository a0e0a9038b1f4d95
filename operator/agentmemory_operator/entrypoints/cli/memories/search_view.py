"""Render the results of a search, the terms of their scores, and the reason for missing results."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentmemory_operator.entrypoints.cli.tables import Section

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import Found, SearchResult

# Terms of an explanation in the order of their combination.
TERMS = ("similarity", "keyword", "entities", "recency", "utility", "confidence_factor", "boost", "rerank")
NOTHING_THERE = "no memory of this user is there, or none that the options let through; names of users are exact"


def result_section(answer: "SearchResult") -> Section:
    """Render the results of a search as a table, best first."""
    is_explained = answer.candidates is not None
    columns = ("ID", "SCORE", "TYPE", "CREATED", *(("BECAUSE",) if is_explained else ()), "CONTENT")
    rows = tuple(_row(found, is_explained) for found in answer.results)
    heading = f"{len(rows)} of {answer.total_candidates} memories, by generation {answer.generation}"
    if answer.removed_by_threshold:
        heading += f": {answer.removed_by_threshold} below {_gates(answer)}"
    notes = (*_ways_out(answer), *_looked_at(answer.candidates), *answer.warnings)
    return Section(heading, columns=columns if rows else (), rows=rows, notes=notes, cut="CONTENT")


def _row(found: "Found", is_explained: bool) -> tuple[str, ...]:
    terms = (_because(found.explain or {}),) if is_explained else ()
    content = (
        "(locked: its key is unavailable or deleted)" if found.content is None else " ".join(found.content.split())
    )
    return (found.id, f"{found.score:.3f}", found.type, f"{found.created_at:%Y-%m-%d}", *terms, content)


def _because(explain: Mapping[str, Any]) -> str:
    """Render the terms of a score in one line, without a boost of 1."""
    terms = {name: explain.get(name) for name in TERMS} | (explain.get("terms") or {}) | (explain.get("evidence") or {})
    parts = [f"{name} {_figure(value)}" for name, value in terms.items() if value is not None]
    parts = [part for part in parts if part != "boost 1"]
    return ", ".join([*parts, f"{_figure(explain.get('age_days'))} days old"])


def _figure(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, int | float) else str(value)


def _gates(result: "SearchResult") -> str:
    """Describe the thresholds in effect. Older APIs do not report them: then `a threshold`."""
    score, similarity = result.threshold, result.min_similarity
    parts = [] if score is None else [f"the threshold {score:g}"]
    parts += [] if similarity is None else [f"the similarity {similarity:g}"]
    return " or ".join(parts) or "a threshold"


def _ways_out(result: "SearchResult") -> Iterator[str]:
    if result.results:
        return
    if not result.total_candidates:
        yield NOTHING_THERE
    if result.removed_by_threshold and result.threshold is not None:
        yield "--threshold -1 leaves nothing out by its score"
    if result.removed_by_threshold and result.min_similarity is not None:
        yield "--min-similarity -1 leaves nothing out by its similarity"


def _looked_at(candidates: Mapping[str, Any] | None) -> Iterator[str]:
    """Describe how many candidates Qdrant scored, if --explain asked for it."""
    if candidates is not None:
        proven = "nothing better was missed" if candidates["exact"] else "something better may have been missed"
        yield f"{candidates['scored']} of {candidates['eligible']} were scored: {proven}"
