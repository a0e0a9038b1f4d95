"""How much one process serves at once, and what a request is told that is beyond it."""

from dataclasses import dataclass, field

from agentmemory_operator.entrypoints.api.problems import OVERLOADED, Problem, ProblemRaised
from agentmemory_operator.runtime.rules.fair_shares import Pace

RETRY_AFTER_S = 1
MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one process.

    Attributes:
        requests: under way at once.
        receiving: requests whose bodies are not complete.
        body_bytes: of all bodies, but for the beginning of each.
        exports: under way at once.
        strangers: requests of whom nobody knows yet whose they are, or that nobody asks for.
        caller_rate: requests of one caller in a second, and as many at once; 0 is any number.
        pace: of bodies.
    """

    requests: int = 512
    receiving: int = 256
    body_bytes: int = 32 * MIB
    exports: int = 32
    strangers: int = 64
    caller_rate: int = 0
    pace: Pace = field(default_factory=Pace)


def overloaded(why: str) -> ProblemRaised:
    """The refusal of a request."""
    detail = f"{why}: retry in {RETRY_AFTER_S} s"
    return ProblemRaised(Problem(type=OVERLOADED, detail=detail, headers={"Retry-After": str(RETRY_AFTER_S)}))
