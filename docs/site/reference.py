"""Reference pages generated from code: conditions, metrics, commands, endpoints, and the tests of each claim."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import typer
from fastapi import FastAPI

from agentmemory_operator.entrypoints.api import openapi
from agentmemory_operator.entrypoints.api.app import ROUTERS
from agentmemory_operator.spec.kinds.conditions import TYPES
from docs.site.kinds import kind_pages
from tests.support.command_line import command_line
from tests.support.metrics import Description, api_metrics, describe, operator_metrics
from tests.support.spec.golden import read_table

Json = dict[str, Any]
NOTICE = "This page is made from the code.\n"


def reference_pages() -> dict[str, str]:
    """Return the pages by path."""
    return kind_pages() | {
        "reference/condition-types.md": _conditions(),
        "reference/metrics.md": _metrics(),
        "reference/commands.md": _commands(),
        "reference/endpoints.md": _endpoints(),
        "claims/tests.md": _claims(),
    }


def _conditions() -> str:
    lines = [
        "# Types of conditions",
        "",
        f"The conditions of each kind, and what each means. {NOTICE}",
        "Every reason is explained in [Conditions](../conditions.md#reasons).",
        "",
    ]
    for kind, types in TYPES.items():
        lines += [
            f"## {kind}",
            "",
            *_table(("type", "meaning"), [(f"`{type_}`", text) for type_, text in types.items()]),
        ]
    return "\n".join(lines)


def _metrics() -> str:
    lines = [
        "# Metrics",
        "",
        f"Every metric of the operator and of the retrieval API. {NOTICE}",
        "[Operations](../operations.md#metrics) explains how to use them.",
        "",
    ]
    for title, metrics in (("Operator", operator_metrics()), ("Retrieval API", api_metrics())):
        rows = [_metric(name, metric) for name, metric in describe(*metrics).items()]
        lines += [
            f"## {title}",
            "",
            *_table(("metric", "type", "labels", "help"), rows),
        ]
    return "\n".join(lines)


def _metric(name: str, metric: Description) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    buckets = f" Buckets: {', '.join(f'{bound:g}' for bound in metric.bounds)}." if metric.bounds else ""
    return f"`{name}`", metric.kind, labels, metric.help + buckets


def _commands() -> str:
    root: Any = typer.main.get_command(command_line())
    lines = [
        "# Commands and options",
        "",
        f"Every command of `agentmemory` with its options. {NOTICE}",
        "[Command line](../cli.md) has examples of each.",
        "",
    ]
    for name in sorted(root.commands):
        lines += _command(root.commands[name], f"agentmemory {name}", level=2)
    return "\n".join(lines)


def _command(command: Any, name: str, *, level: int) -> list[str]:
    arguments = " ".join(_argument(part) for part in command.params if part.param_type_name == "argument")
    lines = [f"{'#' * level} {name}", "", _plain(command.help), "", f"`{f'{name} {arguments}'.strip()} [OPTIONS]`", ""]
    options = [_option(part) for part in command.params if part.param_type_name == "option" and not part.hidden]
    lines += _table(("option", "default", "meaning"), options) if options else []
    for child in sorted(getattr(command, "commands", {})):
        lines += _command(command.commands[child], f"{name} {child}", level=level + 1)
    return lines


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    default = (
        option.default if isinstance(option.default, str | int | float) and option.default not in ("", False) else ""
    )
    environment = f" Also `{option.envvar}`." if isinstance(option.envvar, str) else ""
    return names, f"`{getattr(default, 'value', default)}`" if default != "" else "", _plain(option.help) + environment


def _plain(text: str | None) -> str:
    return " ".join((text or "").split())


def _endpoints() -> str:
    app = FastAPI()
    for router in ROUTERS:
        app.router.routes.extend(router.routes)
    described = openapi.build_document(app)
    lines = [
        "# Endpoints",
        "",
        f"Every request and answer of the API, with all fields. {NOTICE}",
        "[HTTP API](../http-api.md) explains how to use them.",
        "",
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            lines += _endpoint(f"{method.upper()} {path}", operation)
    lines += ["## Schemas", ""]
    for name, schema in sorted(described["components"]["schemas"].items()):
        lines += _schema(name, schema)
    return "\n".join(lines)


def _endpoint(name: str, operation: Json) -> Iterator[str]:
    yield from (f"## `{name}`", "", _plain(operation.get("description") or operation.get("summary")), "")
    rows = [
        (f"`{part['name']}`", part["in"], "yes" if part.get("required") else "", _type(part.get("schema", {})))
        for part in operation.get("parameters", ())
    ]
    yield from _table(("parameter", "in", "required", "type"), rows) if rows else ()
    body = [_type(content["schema"]) for content in operation.get("requestBody", {}).get("content", {}).values()]
    yield from (f"Body: {', '.join(body)}", "") if body else ()
    answers = [
        (code, ", ".join(_contents(answer)), _plain(answer.get("description")))
        for code, answer in operation["responses"].items()
        if "$ref" not in answer
    ]
    yield from _table(("status", "answer", "meaning"), answers)
    errors = [code for code, answer in operation["responses"].items() if "$ref" in answer]
    yield from (f"[Errors](../http-api.md#errors): {', '.join(errors)}", "") if errors else ()


def _contents(answer: Json) -> list[str]:
    return [_type(content.get("schema", {})) for content in answer.get("content", {}).values()]


def _schema(name: str, schema: Json) -> Iterator[str]:
    yield from (f"### {name}", "", _plain(schema.get("description")), "")
    required = schema.get("required", ())
    rows = [
        (f"`{field}`", _type(part), "yes" if field in required else "", _plain(part.get("description")))
        for field, part in schema.get("properties", {}).items()
    ]
    yield from _table(("field", "type", "required", "meaning"), rows) if rows else ()


def _type(schema: Json) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for word in ("anyOf", "oneOf", "allOf"):
        if word in schema:
            return " or ".join(_type(part) for part in schema[word])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    return f"`{schema['const']}`" if "const" in schema else str(schema.get("type", "any"))


def _claims() -> str:
    pages: Mapping[str, Mapping[str, Sequence[Json]]] = read_table("claims.yaml")
    lines = [
        "# The test of each claim",
        "",
        "Which test shows what the pages for users say. Made from `tests/golden/claims.yaml`.",
        "",
    ]
    for page, sections in pages.items():
        lines += [f"## [{page}](../{page}.md)", ""]
        for section, entries in sections.items():
            rows = [(_unlinked(entry["row"]), "<br>".join(f"`{test}`" for test in entry["tests"])) for entry in entries]
            lines += [f"### {section}", "", *_table(("claim", "tests"), rows)]
    return "\n".join(lines)


def _unlinked(text: str) -> str:
    return text.replace("](", "](../") if "](" in text else text


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *(f"| {row} |" for row in cells), ""]
