"""What reads texts and answers in a form that it was asked for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        answer: of the schema that was asked for; nothing else about it was checked.
        tokens_in, tokens_out: what the call used, as the service says, else an estimate; each at least 1.
    """

    answer: dict[str, Any]
    tokens_in: int
    tokens_out: int


class LanguageModel(Protocol):
    """Answers in JSON."""

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """One answer, within the model's time limit, retries included.

        Args:
            instructions: what to do, and what the answer is like; ours alone.
            material: what it is done with; others wrote it (`consolidation/rules/material.py`).
            schema: of the answer, an object, with the keywords that `consolidation/rules/shapes.py` knows.
            max_tokens: of the answer.

        Raises:
            ModelUnavailable: the service is away or throttles, after retries.
            ModelAnswerInvalid: no JSON came, or none of the schema, or it was cut off, or the service refused.
            SpecInvalid: the service refuses for good (key, model, URL), or may not be connected to.
        """
        ...
