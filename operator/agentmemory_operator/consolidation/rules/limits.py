"""What one run has cost so far, and whether it may go on. Pure."""

from dataclasses import dataclass

from agentmemory_operator.spec.effective.consolidation import RunLimits

MILLION = 1_000_000
ANSWER_TOKENS = 4_000
"""Of one answer at most."""
_CHARS_A_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Used:
    """What a run has used."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def plus(self, tokens_in: int, tokens_out: int) -> "Used":
        """With one call more."""
        return Used(self.calls + 1, self.tokens_in + tokens_in, self.tokens_out + tokens_out)

    def spent(self, limits: RunLimits) -> float | None:
        """What that cost; None where no price is known."""
        if limits.input_price is None and limits.output_price is None:
            return None
        return (self.tokens_in * (limits.input_price or 0) + self.tokens_out * (limits.output_price or 0)) / MILLION


def exceeded(used: Used, limits: RunLimits, *, chars: int) -> str | None:
    """Which limit the next call could exceed, by its name in the spec; None where none.

    Args:
        chars: that the model is to read.
    """
    then = used.plus(chars // _CHARS_A_TOKEN + 1, ANSWER_TOKENS)
    if then.calls > limits.calls:
        return "calls"
    if then.tokens_in + then.tokens_out > limits.tokens:
        return "tokens"
    spent = then.spent(limits)
    return "spend" if limits.spend is not None and spent is not None and spent > limits.spend else None
