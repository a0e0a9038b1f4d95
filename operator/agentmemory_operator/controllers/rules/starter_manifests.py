"""Commented manifests of a first agent, written by `agentmemory init` and by the first `agentmemory dev`."""

import json
import re
from typing import Any

from agentmemory_operator.controllers.rules.preset_manifest import CONNECTION_NAME, expand_preset
from agentmemory_operator.spec.kubectl_yaml import dump_yaml
from agentmemory_operator.spec.presets import PRESETS

WIDTH = 110
_PLAIN = re.compile(r"[a-z][-a-z0-9]*")
_TRUTHS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
# Fields that the template `_MEMORY` already explains.
_EXPLAINED_FIELDS = ("connectionRef", "preset", "embedding")
_ABOUT = {
    "index": "The collection: what of it is only read at its start is changed by a rebuild, which `plan` announces.",
    "types": "The types of memories; a list in its place replaces all of them. `halfLifeDays`: how fast one fades.",
    "scoring": "How a search ranks; the next search goes by it.",
    "lifecycle": "When memories end.",
    "entities": "Whether names are found in memories, and how far a search follows them.",
    "consolidation": "How near a merged fact may be to a stored memory; docs/consolidation.md adds a model.",
}
_CONNECTION = """\
# The Qdrant server, 1.18 or newer. `agentmemory dev` puts its own in this place, whatever stands here.
apiVersion: agentmemory.dev/v1alpha1
kind: QdrantConnection
metadata:
  name: {connection}{namespace}
spec:
  # Change it to your server's, as the cluster reaches it.
  url: http://qdrant.qdrant.svc:6333

  # Its API key, in a Secret of this namespace with the annotation agentmemory.dev/hosts: qdrant.qdrant.svc
  #apiKeySecretRef: {{name: qdrant-key, key: api-key}}
"""
_MEMORY = """\
# The long-term memory of one agent, a collection in Qdrant. `agentmemory validate -f .` checks this folder,
# `agentmemory plan -f .` tells what applying it would do, `kubectl explain amem.spec` documents every field.
apiVersion: agentmemory.dev/v1alpha1
kind: AgentMemory
metadata:
  # The agent is called so in the API: /v1/agents/{name}
  name: {name}{namespace}
spec:
  # The QdrantConnection of {connection_file}.
  connectionRef: {{name: {connection}}}

  # {summary}
  # `agentmemory preset list` has the others.
  preset: {preset}

  # Who may call, in a cluster: nobody, unless they are listed. `agentmemory dev` lets in who is on this machine.
  #access:
  #  subjects:
  #    - {{kind: ServiceAccount, namespace: agents, name: {name}, verbs: [read, write]}}

  # A model in the API's process makes the vectors, unless you name a service. Decide before there are many memories:
  # another model, or size, is a rebuild. The Secret needs the annotation agentmemory.dev/hosts: api.openai.com
  #embedding:
  #  provider: openai
  #  model: text-embedding-3-small
  #  dimensions: 1536
  #  secretRef: {{name: openai, key: api-key}}

  # A snapshot each night, and how long they are kept.
  #snapshots:
  #  schedule: "0 3 * * *"
  #  retention: {{keepLast: 4, daily: 7}}

  # What the preset decides, figure by figure. Take the # off what you change: all that you leave out stays as it is.
{figures}"""
CONNECTION_FILE = "connection.yaml"


def render_connection(namespace: str | None = None) -> str:
    """Render the manifest of a QdrantConnection.

    Args:
        namespace: None to omit it: then `kubectl apply` decides.
    """
    return _CONNECTION.format(connection=CONNECTION_NAME, namespace=_namespace(namespace))


def render_memory(name: str, preset: str, namespace: str | None = None) -> str:
    """Render the manifest of an AgentMemory. Its comments contain the figures of the preset that fields can set.

    Args:
        name: Name of the object and the agent.
        preset: One of `PRESETS`.
        namespace: None to omit it: then `kubectl apply` decides.
    """
    return _MEMORY.format(
        name=_scalar(name),
        namespace=_namespace(namespace),
        connection=CONNECTION_NAME,
        connection_file=CONNECTION_FILE,
        preset=preset,
        summary=PRESETS[preset][-1].summary,
        figures=_figures(expand_preset(preset)),
    )


def _namespace(namespace: str | None) -> str:
    return f"\n  namespace: {_scalar(namespace)}" if namespace else ""


def _scalar(text: str) -> str:
    """Quote a name that YAML might read as a number, a boolean or null."""
    return text if _PLAIN.fullmatch(text) and text not in _TRUTHS else json.dumps(text)


def _figures(spec: dict[str, Any]) -> str:
    """Render the blocks of a spec as comments, each after a line that explains it."""
    blocks = []
    for name, value in spec.items():
        if name not in _EXPLAINED_FIELDS:
            text = dump_yaml({name: value}, default_flow_style=None, width=WIDTH)
            commented = "".join(f"  #{line}\n" for line in text.splitlines())
            blocks.append(f"  # {_ABOUT[name]}\n{commented}")
    return "\n".join(blocks)
