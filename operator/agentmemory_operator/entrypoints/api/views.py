"""Which fields of memories an answer shows, and in which form."""

import difflib
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from agentmemory_operator.entrypoints.api.answers import View
from agentmemory_operator.entrypoints.api.schemas import MemoryOut

KNOWN = tuple(MemoryOut.model_fields)
NAME_MAX = 64


def check_name(value: str) -> str:
    """Refuse what no memory has, with what may have been meant."""
    if value in KNOWN:
        return value
    near = difflib.get_close_matches(value, KNOWN, n=1)
    way_out = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}"
    message = f"no memory has a field {value!r}: {way_out}"
    raise PydanticCustomError("value", "{message}", {"message": message})


FieldName = Annotated[
    str,
    Field(max_length=NAME_MAX),
    AfterValidator(check_name),
    WithJsonSchema({"type": "string", "enum": list(KNOWN)}),
]


class Shown(BaseModel):
    """What a caller wants to see of memories."""

    fields: Annotated[list[FieldName], Field(max_length=len(KNOWN))] = Field(
        default=[], description="Only these fields of each memory. Default: all."
    )
    format: Literal["full", "compact"] = Field(
        default="full", description="compact: what is null is left out, and numbers have four decimals."
    )

    def view(self) -> View:
        """How the answer is rendered."""
        return View(fields=tuple(dict.fromkeys(self.fields)), is_compact=self.format == "compact")
