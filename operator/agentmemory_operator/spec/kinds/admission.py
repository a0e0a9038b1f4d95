"""Check a manifest as the API server does: first the types and bounds of its fields, then the CEL rules."""

import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentmemory_operator.errors import FieldError
from agentmemory_operator.spec.canonical_names import did_you_mean
from agentmemory_operator.spec.kinds.schema import INT_OR_STRING, LIST_KEYS, LIST_TYPE, RULES, CelRule, Schema

_Model = TypeVar("_Model", bound=BaseModel)
_Path = tuple[str | int, ...]
FurtherCheck = Callable[[Mapping[str, Any]], Iterable[tuple[tuple[str, ...], str]]]
"""Check for errors that schema rules cannot detect. Takes a document with fields of the right types; yields the path
and the message of each error."""

_MAX_QUOTED_CHARS = 60
_CEL_ERRORS = (KeyError, OverflowError, RuntimeError, TypeError, ValueError)
# Errors after which the CEL rules over the field are still evaluated. After others, such as a wrong type, a rule would
# only report a confusing second error.
_JUDGEABLE = frozenset(
    {
        "extra_forbidden",
        "finite_number",
        "greater_than_equal",
        "less_than_equal",
        "literal_error",
        "string_pattern_mismatch",
        "string_too_long",
        "string_too_short",
        "too_long",
        "too_short",
    }
)


@cache
def _compiled(rule: str) -> Any:
    # Replace cel's command line, which imports a terminal library: 8 MiB and a quarter of a second.
    sys.modules.setdefault("cel.cli", ModuleType("cel.cli"))
    # Import late, because few commands evaluate rules.
    import cel

    return cel.compile(rule)


@dataclass(frozen=True, slots=True)
class _Problem:
    path: _Path
    message: str
    blocks_rules: bool = False


def find_problems(
    model: type[_Model],
    schema: Schema,
    document: object,
    *,
    old: object,
    spared: Collection[CelRule] = (),
    further: FurtherCheck | None = None,
) -> tuple[_Model | None, list[FieldError]]:
    """Validate a document. Return the parsed object, or None if its fields are invalid, and the errors.

    Args:
        model: Model of the whole object.
        schema: Structural schema of the model. Rules over a missing field, or one of the wrong type, are not applied.
        document: Plain JSON, with numbers of the schema's types (`as_plain_json`).
        old: The object that it replaces. None skips the rules on changes.
        spared: Rules that are not applied.
        further: Check beyond the rules of the schema. Runs only if the parts of `spec` have the right types. None: no
            further check.
    """
    parsed: _Model | None = None
    faults: dict[_Path, _Problem] = {}
    try:
        parsed = model.model_validate(document, by_alias=True, by_name=False)
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False):
            problem = _problem(schema, error)
            if not (error["type"] == "too_short" and any(path[: len(problem.path)] == problem.path for path in faults)):
                faults.setdefault(problem.path, problem)
    blocked = [problem.path for problem in faults.values() if problem.blocks_rules]
    rule_problems = _broken_rules(schema, _known(schema, document), old=_known(schema, old), path=(), blocked=blocked)
    ignored = {rule.message for rule in spared}
    violations = [problem for problem in rule_problems if problem.path not in faults and problem.message not in ignored]
    reported = {problem.path for problem in (*faults.values(), *violations)}
    others = (problem for problem in _more_problems(document, further, blocked) if problem.path not in reported)
    problems = [*faults.values(), *violations, *others]
    return parsed, [FieldError(_render_path(problem.path), problem.message) for problem in problems]


def _more_problems(document: Any, further: FurtherCheck | None, blocked: Iterable[_Path]) -> Iterator[_Problem]:
    """Yield errors of the further check, unless a part of the spec has the wrong type."""
    if further and not any(path[:1] in ((), ("spec",)) for path in blocked):
        yield from (_Problem(path, message) for path, message in further(document))


def _problem(schema: Schema, error: ErrorDetails) -> _Problem:
    """Convert pydantic's error into a message with a remedy, at the deepest field that the schema knows."""
    path, node = _located(schema, error["loc"])
    blocks = error["type"] not in _JUDGEABLE
    match error["type"]:
        case "extra_forbidden":
            fields = sorted(node.get("properties", ()))
            question = did_you_mean(error["loc"][-1], fields)
            return _Problem(error["loc"], f"unknown field{question}; known here: {', '.join(fields)}")
        case "missing":
            return _Problem(path, f"is required: give {_expected(node)}", blocks)
        case _:
            return _Problem(path, _wrong_value(node, error["input"]), blocks)


def _wrong_value(node: Schema, value: object) -> str:
    expected = _expected(node)
    words = node.get("enum", ())
    if node.get(INT_OR_STRING):
        words = [word for word in expected.split(" or ") if word.isalpha()]
    return f"{_render_value(value)}: give {expected}{did_you_mean(value, [word for word in words if word])}"


def _located(schema: Schema, loc: Iterable[str | int]) -> tuple[_Path, Schema]:
    """Follow `loc` through the schema. Return the path of the deepest node reached, and the node.

    pydantic appends names of union members to its paths; the schema has no nodes for them.
    """
    path: _Path = ()
    for step in loc:
        fields = schema.get("properties", {})
        child = schema.get("items") if isinstance(step, int) else fields.get(step, schema.get("additionalProperties"))
        if child is None:
            break
        path, schema = (*path, step), child
    return path, schema


def _broken_rules(schema: Schema, value: Any, *, old: Any, path: _Path, blocked: Iterable[_Path]) -> Iterator[_Problem]:
    """Yield the violated rules of a value and its children. Rules at or above a path in `blocked` are not applied."""
    if not any(blocked_path[: len(path)] == path for blocked_path in blocked):
        for rule in schema.get(RULES, ()):
            if not _holds(rule["rule"], value, old):
                subpath = rule.get("fieldPath", "").split(".")[1:]
                yield _Problem((*path, *subpath), rule["message"])
    if isinstance(value, dict):
        old_children = old if isinstance(old, dict) else {}
        for name, child in value.items():
            node = schema.get("properties", {}).get(name, {})
            yield from _broken_rules(node, child, old=old_children.get(name), path=(*path, name), blocked=blocked)
    elif isinstance(value, list):
        yield from _duplicates(schema, value, path)
        for number, child in enumerate(value):
            yield from _broken_rules(schema.get("items", {}), child, old=None, path=(*path, number), blocked=blocked)


def _holds(rule: str, value: Any, old: Any) -> bool:
    """Return whether a rule holds. A rule on changes holds if nothing is replaced.

    If the evaluation fails, a rule on changes holds and any other rule is violated.
    """
    is_transition = "oldSelf" in rule
    if is_transition and old is None:
        return True
    try:
        return _compiled(rule).execute({"self": value, "oldSelf": old}) is True
    except _CEL_ERRORS:
        return is_transition


def _duplicates(schema: Schema, entries: list[Any], path: _Path) -> Iterator[_Problem]:
    """Yield the entries of a keyed list or a set that duplicate an earlier entry."""
    keys = schema.get(LIST_KEYS, ())
    if keys:
        identities = [tuple(entry.get(key) for key in keys) if isinstance(entry, dict) else () for entry in entries]
    else:
        identities = [(entry,) for entry in entries] if schema.get(LIST_TYPE) == "set" else []
    for number, identity in enumerate(identities):
        if identity and all(isinstance(value, str) for value in identity) and identity in identities[:number]:
            key_text = " ".join(
                f"{key} {_render_value(value)}" for key, value in zip(keys or ("value",), identity, strict=True)
            )
            yield _Problem((*path, number), f"{key_text} is already in an earlier entry: rename or remove one")


def _known(schema: Schema, value: Any) -> Any:
    """Return the value without fields for which the schema has no constraints."""
    properties = schema.get("properties")
    if isinstance(value, dict) and properties:
        known_fields = {name: child for name, child in value.items() if properties.get(name)}
        return {name: _known(properties[name], child) for name, child in known_fields.items()}
    if isinstance(value, list) and "items" in schema:
        return [_known(schema["items"], child) for child in value]
    return value


def _expected(node: Schema) -> str:
    """Describe the values that a field accepts."""
    if node.get(INT_OR_STRING):
        return str(node[RULES][0]["message"].partition(" must be ")[2])
    if "enum" in node:
        return " or ".join(map(str, node["enum"]))
    return _expected_type(node)


def _expected_type(node: Schema) -> str:
    match node.get("type"):
        case "integer":
            return f"a whole number{_bounds(node, 'minimum', 'maximum')}"
        case "number":
            return f"a number{_bounds(node, 'minimum', 'maximum')}"
        case "string":
            return f"text{_text_bounds(node)}"
        case "array":
            return f"a list{_bounds(node, 'minItems', 'maxItems')}"
        case "boolean":
            return "true or false"
        case _:
            return "an object"


def _bounds(node: Mapping[str, Any], lower: str, upper: str) -> str:
    text = f" {node.get(lower, '')}..{node.get(upper, '')}"
    return "" if text == " .." else text + (" entries long" if lower == "minItems" else "")


def _text_bounds(node: Mapping[str, Any]) -> str:
    length = f" of {node.get('minLength', 0)}..{node['maxLength']} characters" if "maxLength" in node else ""
    return length + (f" that matches {node['pattern']}" if "pattern" in node else "")


def _render_value(value: object) -> str:
    if isinstance(value, str | int | float | None):
        return json.dumps(value)[:_MAX_QUOTED_CHARS]
    return "a list" if isinstance(value, list | tuple) else "an object"


def _render_path(path: _Path) -> str:
    steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step[:_MAX_QUOTED_CHARS]}" for step in path)
    return steps.removeprefix(".") or "object"
