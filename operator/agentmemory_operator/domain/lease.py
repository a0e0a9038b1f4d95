"""Who of several operators leads."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Who of several operators may write.

    Attributes:
        holder: identity of a process; empty when it was given back.
        duration_s: how long it binds the others after its last renewal.
        acquired_at, renewed_at: the holder's wall clock, RFC 3339, for people.
        transitions: how often the holder changed.
        version: changes with every write; empty before the first.
    """

    holder: str = ""
    duration_s: int = 0
    acquired_at: str = ""
    renewed_at: str = ""
    transitions: int = 0
    version: str = ""
