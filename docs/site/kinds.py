"""Reference page of each kind of object: a section for each block, with an example, fields and rules."""

import re
from collections.abc import Iterator
from textwrap import indent
from typing import Any

import yaml

from docs.site.links import ROOT
from docs.site.wording import marked, rules_in_words
from tests.support.spec.golden import LOADER

Json = dict[str, Any]
PARTS = ("spec", "status")
EXAMPLES: dict[str, dict[str, str]] = yaml.safe_load((ROOT / "docs" / "site" / "examples.yaml").read_text())
"""YAML of each block below `spec`, by kind and block."""
MAX_INLINE_FIELDS = 3
"""Largest number of fields of a nested block that is listed within its parent, without a section."""
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
}
_DEFAULT = re.compile(r" ?Default: (.+?)\.(?= [A-Z]|$)")


def kind_pages() -> dict[str, str]:
    """Return the pages by path."""
    crds = [yaml.load(path.read_text(), Loader=LOADER) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    return {f"reference/{crd['spec']['names']['kind'].lower()}.md": _page(crd["spec"]) for crd in crds}


def children_of(schema: Json, path: str) -> Iterator[tuple[str, Json, bool]]:
    """Yield the fields directly below a schema: path, schema, and True if the field is required in its parent."""
    if isinstance(items := schema.get("items"), dict):
        yield from children_of(items, f"{path}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from children_of(values, f"{path}.KEY")
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child, name in required


def fields_of(schema: Json, path: str) -> Iterator[tuple[str, Json, bool]]:
    """Yield each field below a schema, as `children_of` does."""
    for name, child, is_required in children_of(schema, path):
        yield name, child, is_required
        yield from fields_of(child, name)


def _page(spec: Json) -> str:
    names, version = spec["names"], spec["versions"][-1]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# {names['kind']}",
        "",
        schema.get("description", ""),
        "",
        f"`{spec['group']}/{version['name']}`, short name `{names['shortNames'][0]}`. "
        f"`kubectl explain {names['shortNames'][0]}.spec` prints the same fields. This page is made from `crds/`.",
        "",
    ]
    parts = {part: schema["properties"][part] for part in PARTS if part in schema["properties"]}
    return "\n".join([*lines, *(line for part in parts for line in _part(names["kind"], parts[part], part, schema))])


def _part(kind: str, schema: Json, part: str, whole: Json) -> Iterator[str]:
    yield from (f"## {part}", "", schema.get("description", ""), "")
    yield from _example(kind, part)
    yield from _fields(schema, part)
    yield from _rules(schema, part, *(_rules_of(whole) if part == "spec" else ()))
    for path, block, is_required in children_of(schema, part):
        if _is_section(block, path):
            yield from _block(kind, path, block, is_required=is_required)


def _block(kind: str, path: str, block: Json, *, is_required: bool) -> Iterator[str]:
    level = "###" if path.count(".") == 1 else "####"
    yield from (f'<a id="{path}"></a>', "", f"{level} `{path}`", "", _facts(block, is_required=is_required), "")
    yield from (_text(block, path, is_required=is_required), "")
    yield from _example(kind, path)
    yield from _fields(block, path)
    yield from _rules(block, path)
    for child, schema, needed in children_of(block, path):
        if _is_section(schema, child):
            yield from _block(kind, child, schema, is_required=needed)


def _example(kind: str, path: str) -> Iterator[str]:
    if text := EXAMPLES.get(kind, {}).get(path):
        yield from ("```yaml", text.rstrip() if path == "spec" else "spec:\n" + indent(text.rstrip(), "  "), "```", "")


def _is_section(schema: Json, path: str) -> bool:
    """Return whether a field has a section: a block of the first level, or with nested blocks or many fields."""
    below = list(children_of(schema, path))
    if not below:
        return False
    has_blocks = any(True for name, child, _ in below for _ in children_of(child, name))
    return path.count(".") == 1 or has_blocks or len(below) > MAX_INLINE_FIELDS


def _fields(schema: Json, parent: str) -> Iterator[str]:
    """Yield the fields of a block, without those that have a section, as a list of definitions."""
    for path, field, is_required in children_of(schema, parent):
        if _is_section(field, path):
            continue
        yield from _field(path, field, parent, is_required=is_required)
        for child, own, needed in children_of(field, path):
            yield from _field(child, own, parent, is_required=needed)


def _field(path: str, field: Json, parent: str, *, is_required: bool) -> Iterator[str]:
    rules = "".join(f" {rule}" for rule in rules_in_words(_rules_of(field)))
    name = path.removeprefix(parent).removeprefix("[]").removeprefix(".")
    yield f'<a id="{path}"></a>`{name}` {_facts(field, is_required=is_required)}'
    yield f": {_text(field, path, is_required=is_required)}{rules}".rstrip()
    yield ""


def _rules(schema: Json, path: str, *messages: str) -> list[str]:
    names = [child.rpartition(".")[2] for child, _, _ in children_of(schema, path)]
    rules = rules_in_words([*_rules_of(schema), *messages], names)
    return ["**Rules**", "", *(f"- {rule}" for rule in rules), ""] if rules else []


def _rules_of(schema: Json) -> list[str]:
    return [rule["message"] for rule in schema.get("x-kubernetes-validations", ()) if "message" in rule]


def _text(field: Json, path: str, *, is_required: bool) -> str:
    """Return the description with the default at its end. That of a required field applies if its block is absent."""
    text = field.get("description", "")
    default = _DEFAULT.search(text)
    if not default:
        return marked(text)
    label = f"Without `{path.split('.')[-2].removesuffix('[]')}`" if is_required else "Default"
    rest = " ".join((text[: default.start()] + text[default.end() :]).split())
    return f"{marked(rest)} *{label}:* {marked(default[1])}.".strip()


def _facts(field: Json, *, is_required: bool) -> str:
    facts = [f"*{_type(field)}*", *(["**required**"] if is_required else [])]
    if "default" in field:
        facts.append(f"default `{_value(field['default'])}`")
    if "enum" in field:
        facts.append("one of " + ", ".join(f"`{_value(value)}`" for value in field["enum"]))
    has_range = ".." in field.get("description", "")
    shown = ("pattern",) if has_range else tuple(_BOUNDS)
    bounds = [_BOUNDS[name].format(field[name]) for name in shown if name in field]
    return " · ".join([*facts, *([f'<span class="bounds">{" · ".join(bounds)}</span>'] if bounds else [])])


def _type(field: Json) -> str:
    if field.get("x-kubernetes-int-or-string"):
        return "integer or string"
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    if isinstance(field.get("additionalProperties"), dict):
        return f"map of {_type(field['additionalProperties'])}"
    return str(field.get("type", "any"))


def _value(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
