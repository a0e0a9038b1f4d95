"""Base of request models, and types of their fields with limits, which the OpenAPI document has too.

The functions are pydantic validators: they return the value to use, and raise PydanticCustomError for an invalid one.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from agentmemory_operator.agents.checks import FLOAT32_MAX
from agentmemory_operator.memories.rules.ids import is_id
from agentmemory_operator.memories.rules.record import IMPORTANCE_LEVELS
from agentmemory_operator.spec.caller_rights import GLOBAL, GROUP_PREFIX, MAX_SCOPES, SCOPE_PATTERN, is_well_formed
from agentmemory_operator.spec.canonical_names import NAME_PATTERN, VISIBLE_PATTERN, canonical_name, is_blank
from agentmemory_operator.spec.cron import zone_fault
from agentmemory_operator.spec.effective.settings import MAX_TOP_K
from agentmemory_operator.spec.times import parse_time

MAX_ID_CHARS = 256
MAX_AUTHOR_CHARS = 320
MAX_TAG_CHARS = 128
MAX_TIME_ZONE_CHARS = 64
TIME_ZONE_HEADER = "X-AgentMemory-Timezone"
MAX_TAGS = 64
MAX_SOURCE_IDS = 1_000
MAX_SOURCE_CHARS = 66
MAX_TYPE_CHARS = 64
# Maximum number of types in a request, equal to that of an agent.
MAX_TYPES = 64
# Lengths of the longest UUID, time and scope.
MEMORY_ID_CHARS, TIME_CHARS, SCOPE_CHARS = 36, 35, 69
MAX_NAMESPACE_PARTS = 16
MAX_CONTENT_CHARS = 65_536
MAX_ITEM_CONTENT_CHARS = 1 << 20
MAX_METADATA_DEPTH = 16
MAX_VECTOR_DIMENSIONS = 65_536

SOURCES = ("conversation", "tool_result", "reflection", "distillation", "consolidation", "import")
OWN_SOURCE = r"^x-[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class Body(BaseModel):
    """A JSON body: strict types, no unknown fields, only finite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


ZoneName = Literal["SENSITIVE", "PERSONAL", "PROFESSIONAL"]


def _refuse(message: str) -> PydanticCustomError:
    # Pass the message as a value, because pydantic would interpret braces in a template.
    return PydanticCustomError("value", "{message}", {"message": message})


def read_time(value: Any) -> int:
    """Convert an RFC 3339 time with an offset to Unix milliseconds, from 1970 to 9999."""
    try:
        return parse_time(value)
    except ValueError as error:
        raise _refuse(str(error)) from None


def parse_importance(value: Any) -> float:
    """Convert a number from 0 to 1, or the name of a level, to a number from 0 to 1."""
    if isinstance(value, str) and value in IMPORTANCE_LEVELS:
        return IMPORTANCE_LEVELS[value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise _refuse("must be a number from 0 to 1, or low, medium, high or critical")


def header_text(value: Any) -> Any:
    """Decode the UTF-8 of a header that the framework has decoded as Latin-1; return None unchanged.

    Only for the headers that `edge.check_text` has checked (`NAME_HEADERS`).
    """
    return value.encode("latin-1").decode() if isinstance(value, str) else value


def parse_whole_number(value: Any) -> Any:
    """Convert a float without fraction to an integer, as in JSON Schema: 5.0 is 5. Return other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_memory_id(value: str) -> str:
    """Convert a memory id (a UUID) to its stored spelling, in lower case."""
    if not is_id(value.lower()):
        raise _refuse("must be the ID of a memory (a UUID)")
    return value.lower()


def check_metadata(value: dict[str, Any]) -> dict[str, Any]:
    """Reject metadata deeper than `MAX_METADATA_DEPTH` levels, which other readers of the collection do not support."""
    level: list[Any] = [value]
    for _ in range(MAX_METADATA_DEPTH):
        parts = (part for node in level for part in (node.values() if isinstance(node, dict) else node))
        level = [part for part in parts if isinstance(part, (dict, list))]
        if not level:
            return value
    raise _refuse(f"must not be nested deeper than {MAX_METADATA_DEPTH} levels")


def check_context(value: Any) -> str | dict[str, Any]:
    """Accept a non-blank text of at most `MAX_CONTENT_CHARS`, or an object that is valid as metadata."""
    if isinstance(value, dict):
        return check_metadata(value)
    if isinstance(value, str) and 0 < len(value) <= MAX_CONTENT_CHARS and not is_blank(value):
        return value
    raise _refuse(f"must be a JSON object, or a non-blank text of at most {MAX_CONTENT_CHARS:,} characters")


def check_time_zone(value: str) -> str:
    """Reject a name that is not an IANA time zone."""
    if fault := zone_fault(value):
        raise _refuse(fault)
    return value


def drop_repeats(values: list[str]) -> list[str]:
    """Remove duplicates; keep the order of first occurrence."""
    return list(dict.fromkeys(values))


def check_user(value: str) -> str:
    """Reject a name that has the prefix of a scope but is not a valid scope."""
    if not is_well_formed(value):
        raise _refuse(
            f"must be {GLOBAL} or {GROUP_PREFIX}NAME, where NAME has at most 63 letters, digits, dots, _ and -"
        )
    return value


def check_source(value: str) -> str:
    """Reject a source that is neither one of `SOURCES` nor a caller's own name with the prefix `x-`."""
    if value in SOURCES or re.fullmatch(OWN_SOURCE, value):
        return value
    names = ", ".join(SOURCES)
    raise _refuse(f"must be one of {names}, or x- and a name of your own, for example x-crm; not {value!r}")


# Normalise names to NFC before the length check, so that the checked value is the stored value.
_NAME = BeforeValidator(canonical_name)
Id = Annotated[str, Field(min_length=1, max_length=MAX_ID_CHARS, pattern=NAME_PATTERN), _NAME]
HeaderName = Annotated[Id, BeforeValidator(header_text)]
# Name of an author. It may be longer than other names, because a ServiceAccount is NAMESPACE/NAME.
Author = Annotated[str, Field(min_length=1, max_length=MAX_AUTHOR_CHARS, pattern=NAME_PATTERN), _NAME]
UserId = Annotated[Id, AfterValidator(check_user)]
ScopeName = Annotated[str, Field(max_length=SCOPE_CHARS, pattern=SCOPE_PATTERN), _NAME]
ScopeNames = Annotated[list[ScopeName], Field(max_length=MAX_SCOPES)]
TypeName = Annotated[str, Field(min_length=1, max_length=MAX_TYPE_CHARS, pattern=NAME_PATTERN), _NAME]
TypeNames = Annotated[list[TypeName], Field(max_length=MAX_TYPES)]
Tag = Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS, pattern=NAME_PATTERN), _NAME]
Tags = Annotated[list[Tag], Field(max_length=MAX_TAGS), AfterValidator(drop_repeats)]
FilterTags = Annotated[list[Tag], Field(max_length=MAX_TAGS)]
Namespace = Annotated[list[Id], Field(max_length=MAX_NAMESPACE_PARTS)]
ItemNamespace = Annotated[list[Id], Field(min_length=2, max_length=MAX_NAMESPACE_PARTS)]
Content = Annotated[str, Field(min_length=1, max_length=MAX_CONTENT_CHARS, pattern=VISIBLE_PATTERN)]
# Text of an item. The limit only matches the maximum body; the use case limits the tokens.
ItemText = Annotated[str, Field(min_length=1, max_length=MAX_ITEM_CONTENT_CHARS, pattern=VISIBLE_PATTERN)]
MemoryId = Annotated[
    str,
    AfterValidator(parse_memory_id),
    WithJsonSchema({"type": "string", "format": "uuid", "maxLength": MEMORY_ID_CHARS}),
]
Time = Annotated[
    int, BeforeValidator(read_time), WithJsonSchema({"type": "string", "format": "date-time", "maxLength": TIME_CHARS})
]
TimeZone = Annotated[str, Field(min_length=1, max_length=MAX_TIME_ZONE_CHARS), AfterValidator(check_time_zone)]
Share = Annotated[float, Field(ge=0, le=1)]
Similarity = Annotated[float, Field(ge=-1, le=1)]
Importance = Annotated[
    float,
    BeforeValidator(parse_importance),
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "enum": list(IMPORTANCE_LEVELS)}]}
    ),
]
# Size and range depend on the agent, so the use cases check them.
# Only the first invalid number is reported, because a list of 1,536 errors would be useless.
Numbers = Annotated[list[float], Field(min_length=1, max_length=MAX_VECTOR_DIMENSIONS, fail_fast=True)]
SourceIds = Annotated[list[MemoryId], Field(max_length=MAX_SOURCE_IDS), AfterValidator(drop_repeats)]
Role = Literal["user", "assistant", "tool", "system"]
KnowledgeCategory = Literal["brand", "strategy", "meeting", "content", "technical", "relationship", "general"]
# Source of a memory. The prefix `x-` separates callers' own names from names that are added to `SOURCES` later.
Source = Annotated[
    str,
    Field(max_length=MAX_SOURCE_CHARS),
    AfterValidator(check_source),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "enum": list(SOURCES)},
                {"type": "string", "maxLength": MAX_SOURCE_CHARS, "pattern": OWN_SOURCE},
            ]
        }
    ),
]
Context = Annotated[
    str | dict[str, Any],
    PlainValidator(check_context),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string", "minLength": 1, "maxLength": MAX_CONTENT_CHARS}]}),
]
Metadata = Annotated[dict[str, Any], AfterValidator(check_metadata)]
# Not validated here: `memories/rules/criteria_json.py` parses filters, and names an invalid condition by its path.
Filters = dict[str, Any]
# Bounds must precede it in an annotation: pydantic omits those after it from the OpenAPI document.
WHOLE = BeforeValidator(parse_whole_number)
Whole = Annotated[int, WHOLE]
TopK = Annotated[int, Field(ge=1, le=MAX_TOP_K), WHOLE]
Version = Annotated[int, Field(ge=1, le=2**53), WHOLE]
# Threshold of a score, limited because Qdrant cannot compare a score beyond float32.
Threshold = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX)]


class QueryTimes(BaseModel):
    """Meaning of times such as "last week" in the query of a search."""

    reference_time: Time | None = Field(
        default=None, description="Time that words such as `yesterday` in the query refer to. Default: now."
    )
    time_zone: TimeZone | None = Field(
        default=None,
        description=f"IANA time zone of the days in the query. Default: the header {TIME_ZONE_HEADER}, else UTC.",
    )

    def time_options(self, default_time_zone: str | None) -> dict[str, Any]:
        """Return the arguments of a `SearchRequest`. Without any zone they lack `time_zone`.

        Args:
            default_time_zone: Zone from the request header, used if the body names none. None without the header.
        """
        time_zone = self.time_zone or default_time_zone
        return {"reference_time": self.reference_time} | ({"time_zone": time_zone} if time_zone else {})
