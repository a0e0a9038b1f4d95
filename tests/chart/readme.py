"""The chart's README, with its values: `python -m tests.chart.readme` writes it."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import yaml

CHART = pathlib.Path(__file__).resolve().parents[2] / "charts" / "agentmemory-operator"
README = CHART / "README.md"
KEY = re.compile(r"^(?P<indent> *)(?P<name>\w+):")
PAGE = re.compile(r"docs/[\w-]+\.md")
COLUMNS = ("| value | type | default | what it is |", "|---|---|---|---|")
HEAD = """\
# Helm chart agentmemory-operator

{description} The chart installs the operator, the retrieval API and the definitions, and upgrades them.

```console
$ helm install agentmemory charts/agentmemory-operator --namespace agentmemory-system --create-namespace
$ kubectl label namespace agentmemory-system pod-security.kubernetes.io/enforce=restricted
```

Needs Kubernetes {kubernetes} and a Qdrant of 1.18 or newer; `--set qdrant.enabled=true` installs one for evaluation.
After that: [a first agent](../../docs/start-platform.md), [upgrade and uninstall](../../docs/install.md),
[settings](../../docs/settings.md), [security](../../docs/security.md).

## Values

Generated from `values.yaml` and `values.schema.json` by `make chart-readme`. A value that is not listed is refused.
"""


def comments() -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the path of each value, and the comment above it."""
    path: list[str] = []
    above: list[str] = []
    for line in (CHART / "values.yaml").read_text().splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.lstrip(" #"))
            continue
        if found := KEY.match(line):
            path[len(found["indent"]) // 2 :] = [found["name"]]
            yield tuple(path), " ".join(above)
        above = []


def type_of(schema: dict[str, Any], path: tuple[str, ...]) -> str:
    """Return the type of a value in words: its alternatives if it has few."""
    found = schema
    for name in ("", *path):
        found = found["properties"][name] if name else found
        reference = found.get("$ref", "").removeprefix("#/$defs/")
        found = {**schema["$defs"][reference], **found} if reference else found
    if "enum" in found:
        return ", ".join(f"`{json.dumps(value)}`" for value in found["enum"])
    kinds = found.get("type") or [one["type"] for key in ("anyOf", "oneOf") for one in found.get(key, ())]
    return " or ".join([kinds] if isinstance(kinds, str) else kinds)


def rows() -> Iterator[str]:
    """Yield the rows of every value, those of a group under a heading."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    found = dict(comments())
    groups = {path[:length] for path in found for length in range(1, len(path))}

    def row(path: tuple[str, ...]) -> str:
        default = "" if path in groups else f"`{json.dumps(at(values, path))}`"
        comment = PAGE.sub(r"[\g<0>](../../\g<0>)", found[path])
        cells = (f"`{'.'.join(path)}`", type_of(schema, path), default, comment)
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    yield from ("", *COLUMNS)
    yield from (row(path) for path in found if path[:1] not in groups)
    for path in found:
        if path in groups and len(path) == 1:
            yield from ("", f"### {path[0]}", "", PAGE.sub(r"[\g<0>](../../\g<0>)", found[path]), "", *COLUMNS)
        elif path[:1] in groups:
            yield row(path)


def at(values: dict[str, Any], path: tuple[str, ...]) -> Any:
    """Return the default of a value."""
    found: Any = values
    for name in path:
        found = found[name]
    return found


def page() -> str:
    """Return the whole page."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    kubernetes = chart["kubeVersion"].removeprefix(">=").removesuffix(".0-0") + " or newer"
    head = HEAD.format(description=chart["description"], kubernetes=kubernetes)
    return head + "\n".join(rows()) + "\n"


if __name__ == "__main__":
    README.write_text(page())
