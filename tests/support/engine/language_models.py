"""Scripted language models behind the product's port."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentmemory_operator.consolidation.rules.schema_fit import SchemaMismatch, fit
from agentmemory_operator.errors import ModelOutputInvalid
from agentmemory_operator.ports.models import Completion

Row = dict[str, Any]
ModelResponse = Mapping[str, Any]
_MATERIAL = re.compile(r"<material (\w+)>\n(.*)\n</material \1>", re.DOTALL)


@dataclass
class FunctionModel:
    """A model that responds with the result of a function of the rows in its prompt.

    Attributes:
        answers: Returns the response, or raises.
        rows: Rows of each call.
    """

    answers: Callable[[list[Row]], ModelResponse] = lambda rows: {}
    tokens: tuple[int, int] = (100, 20)
    rows: list[list[Row]] = field(default_factory=list)

    async def complete(
        self, instructions: str, material: str, schema: Mapping[str, Any], max_tokens: int
    ) -> Completion:
        """Return the scripted response. Raise ModelOutputInvalid if it does not match the schema."""
        found = _MATERIAL.fullmatch(material)
        assert found, "no material"
        rows: list[Row] = json.loads(found[2])
        self.rows.append(rows)
        try:
            answer = fit(dict(self.answers(rows)), schema)
        except SchemaMismatch as misfit:
            raise ModelOutputInvalid(str(misfit), tokens_in=self.tokens[0], tokens_out=self.tokens[1]) from None
        return Completion(answer.value, *self.tokens, dropped=answer.dropped)


def merge_by_first_word(rows: Sequence[Row]) -> ModelResponse:
    """Merge all rows with the same first word."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["content"].split()[0], []).append(row)
    merged = [
        {"content": " ".join(row["content"] for row in group), "source_ids": [row["id"] for row in group]}
        for group in groups.values()
        if len(group) > 1
    ]
    return {"merged_facts": merged}
