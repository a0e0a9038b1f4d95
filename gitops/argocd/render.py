"""Write argocd-cm.yaml, Argo CD's settings for the kinds of this project, from the Lua files below this folder."""

import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE / "argocd-cm.yaml"
HEAD = "# Made by `make gitops` from the Lua beside it; docs/gitops.md says how Argo CD gets it.\n"


class _Dumper(yaml.SafeDumper):
    """Dumper that writes a text of several lines as a literal block."""


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent)


def _dump(document: object) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1000)


def render() -> str:
    """Return the ConfigMap as YAML."""
    data = {}
    for health in sorted(HERE.glob("*/*/health.lua")):
        folder = health.parent
        kind = f"{folder.parent.name}_{folder.name}"
        data[f"resource.customizations.health.{kind}"] = health.read_text()
        if (discovery := folder / "actions" / "discovery.lua").exists():
            actions = sorted(folder.glob("actions/*/action.lua"))
            definitions = [{"name": path.parent.name, "action.lua": path.read_text()} for path in actions]
            told = {"discovery.lua": discovery.read_text(), "definitions": definitions}
            data[f"resource.customizations.actions.{kind}"] = _dump(told)
    metadata = {"name": "argocd-cm", "namespace": "argocd", "labels": {"app.kubernetes.io/part-of": "argocd"}}
    return HEAD + _dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


if __name__ == "__main__":
    TARGET.write_text(render())
    sys.exit()
