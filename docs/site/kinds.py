"""A page for each kind of object: every field of its definition."""

from collections.abc import Iterator
from typing import Any

import yaml

from docs.site.links import ROOT
from tests.support.spec.golden import LOADER

Json = dict[str, Any]
SHOWN = ("spec", "status")
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} entries",
    "maxProperties": "at most {} entries",
    "pattern": "matches `{}`",
    "format": "{}",
}


def kind_pages() -> dict[str, str]:
    """The pages, by path."""
    crds = [yaml.load(path.read_text(), Loader=LOADER) for path in sorted((ROOT / "crds").glob("*.yaml"))]
    return {f"reference/{crd['spec']['names']['kind'].lower()}.md": _page(crd["spec"]) for crd in crds}


def fields_of(schema: Json, path: str) -> Iterator[tuple[str, Json, bool]]:
    """Yield each field below a schema: its path, its own schema, and whether it is required where its parent is."""
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        yield f"{path}.{name}", child, name in required
        yield from fields_of(child, f"{path}.{name}")
    if isinstance(items := schema.get("items"), dict):
        yield from fields_of(items, f"{path}[]")
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from fields_of(values, f"{path}.KEY")


def _page(spec: Json) -> str:
    names, version = spec["names"], spec["versions"][-1]
    schema = version["schema"]["openAPIV3Schema"]
    lines = [
        f"# {names['kind']}",
        "",
        schema.get("description", ""),
        "",
        f"`{spec['group']}/{version['name']}`, short name `{names['shortNames'][0]}`. "
        f"`kubectl explain {names['shortNames'][0]}.spec` prints the same. This page is made from `crds/`.",
        "",
    ]
    for part in SHOWN:
        if part in schema["properties"]:
            lines += _part(schema["properties"][part], part)
    return "\n".join(lines)


def _part(schema: Json, part: str) -> list[str]:
    lines = [f"## {part}", "", schema.get("description", ""), ""]
    for path, field, is_required in fields_of(schema, part):
        heading = "###" if path.count(".") == 1 else "####"
        lines += [f"{heading} `{path}`", "", _facts(field, is_required=is_required), "", *_texts(field), ""]
    return lines


def _texts(field: Json) -> list[str]:
    rules = [rule["message"] for rule in field.get("x-kubernetes-validations", ()) if "message" in rule]
    return [_escaped(field.get("description", "")), *(f"\n- {_escaped(rule)}" for rule in rules)]


def _facts(field: Json, *, is_required: bool) -> str:
    facts = [f"*{_type(field)}*", *(["**required**"] if is_required else [])]
    if "default" in field:
        facts.append(f"default `{_value(field['default'])}`")
    if "enum" in field:
        facts.append("one of " + ", ".join(f"`{_value(value)}`" for value in field["enum"]))
    facts += [text.format(field[name]) for name, text in _BOUNDS.items() if name in field]
    return " · ".join(facts)


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


def _escaped(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("[", "\\[")
