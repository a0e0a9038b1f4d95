"""What the status says of memories of types that the object lists no more."""

from collections.abc import Iterator, Mapping

from agentmemory_operator.domain.conditions import Reason, State
from agentmemory_operator.domain.variables import UNLISTED_RECENCY


def unlisted_states(unlisted: Mapping[str, int]) -> Iterator[State]:
    """Yield the condition that stands while there are such memories; `unlisted` are their numbers by type."""
    if unlisted:
        counts = ", ".join(f"{count} of type {name}" for name, count in unlisted.items())
        message = (
            f"there are memories of types that spec.types (or the preset) does not list: {counts}. They answer with a"
            f" recency of {UNLISTED_RECENCY} and without rules of a type, new ones are refused: list the type again,"
            " or forget them"
        )
        yield State("TypesListed", False, Reason.TYPE_REMOVED, message)
