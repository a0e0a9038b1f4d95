"""Render the response to a search: results, with --explain the calculation of scores, and hints if there are none."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentmemory_operator.entrypoints.cli.memories.score_formulas import formula_of
from agentmemory_operator.entrypoints.cli.tables import Section

if TYPE_CHECKING:
    # The import takes half a second, which other commands should not wait for.
    from agentmemory_client import AgentDetails, Found, Memory, SearchResult

COLUMNS = ("ID", "SCORE", "TYPE", "CREATED", "CONTENT")
LOCKED = "(locked: its key is unavailable or deleted)"
NOTHING_THERE = "no memory of this user is there, or none that the options let through; names of users are exact"


def result_section(answer: "SearchResult", details: "AgentDetails | None" = None) -> Section:
    """Render the results of a search as a table, best first, and with --explain the calculation of each score.

    Args:
        details: Settings of the agent, read after the search. None omits the calculations.
    """
    rows = tuple(_row(found, 4 if details else 3) for found in answer.results)
    heading = f"{len(rows)} of {answer.total_candidates} memories, by generation {answer.generation}"
    if answer.removed_by_threshold:
        heading += f": {answer.removed_by_threshold} below {_gates(answer)}"
    notes = (*_explanations(answer, details), *_named_times(answer), *_hints(answer))
    notes += (*_candidates_note(answer.candidates, len(answer.left_out or ())), *answer.warnings)
    return Section(heading, columns=COLUMNS if rows else (), rows=rows, notes=notes, cut="CONTENT")


def _row(found: "Found", decimals: int) -> tuple[str, ...]:
    score = f"{found.score:.{decimals}f}"
    return (found.id, score, found.type, f"{found.created_at:%Y-%m-%d}", content_of(found))


def _explanations(answer: "SearchResult", details: "AgentDetails | None") -> Iterator[str]:
    """Yield the calculation of each score, in the order of the results, and a note if the settings have changed."""
    for found in answer.results if details else ():
        if found.explain and details:
            yield f"{found.score:.4f} = {formula_of(found.explain, details)}"
    if details and details.generation != answer.generation:
        yield f"the settings have changed since: the weights are those of generation {details.generation}"


def _named_times(answer: "SearchResult") -> Iterator[str]:
    """Describe the times that the query names, if --explain asked for it."""
    for span in answer.time_spans or ():
        yield f"{span['words']!r} is {span['since']} to {span['until']}"


def content_of(memory: "Memory") -> str:
    """Return the content of a memory on one line, or `LOCKED` if the memory is locked."""
    return LOCKED if memory.content is None else " ".join(memory.content.split())


def _gates(result: "SearchResult") -> str:
    """Describe the thresholds in effect. Older APIs do not report them: return `a threshold` for those."""
    score, similarity = result.threshold, result.min_similarity
    parts = [] if score is None else [f"the threshold {score:g}"]
    parts += [] if similarity is None else [f"the similarity {similarity:g}"]
    return " or ".join(parts) or "a threshold"


def _hints(result: "SearchResult") -> Iterator[str]:
    if result.results:
        return
    if not result.total_candidates:
        yield NOTHING_THERE
    if result.removed_by_threshold and result.threshold is not None:
        yield "--threshold -1 leaves nothing out by its score"
    if result.removed_by_threshold and result.min_similarity is not None:
        yield "--min-similarity -1 leaves nothing out by its similarity"


def _candidates_note(candidates: Mapping[str, Any] | None, left_out: int) -> Iterator[str]:
    """Describe how many of the matching memories were scored, and left out. Yield nothing without --explain."""
    if candidates is not None:
        proven = "nothing better was missed" if candidates["exact"] else "something better may have been missed"
        yield f"{candidates['scored']} of {candidates['eligible']} were scored: {proven}"
    if left_out:
        yield f"{left_out} left out by --per-session"
