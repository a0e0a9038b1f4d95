"""How `agentmemory orphans` tells its findings, with the commands that adopt or delete."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentmemory_operator.controllers.inspection import Findings
from agentmemory_operator.controllers.rules.orphans import Holding, Orphan, OrphanKind, slug_behind
from agentmemory_operator.entrypoints.cli.tables import Section
from agentmemory_operator.spec.effective.embedding import EmbeddingSource
from agentmemory_operator.spec.kinds.agent_memory import API_VERSION
from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS

COLUMNS = ("COLLECTION", "ALIAS", "POINTS", "WHOSE IT WAS", "SINCE", "WHY")
WHY = {
    OrphanKind.OBJECT_GONE: "its AgentMemory was deleted",
    OrphanKind.UNMARKED: "it has no ownership marker",
    OrphanKind.UNREFERENCED: "no alias points to it",
}
UNKNOWN = "-"
ANY_CONNECTION, ANY_NAMESPACE = "CONNECTION", "NAMESPACE"


@dataclass(frozen=True, slots=True)
class AskedServer:
    """What was asked, and what it answered.

    Attributes:
        connection: namespace and name of the QdrantConnection; None where only a URL was given.
        has_key: whether it takes an API key.
        findings: None where it could not be asked.
    """

    url: str
    connection: tuple[str, str] | None
    has_key: bool
    findings: Findings | None
    error: str = ""


def orphans_document(servers: Sequence[AskedServer]) -> dict[str, Any]:
    """The findings as JSON."""
    return {"servers": [_document(server) for server in servers]}


def _document(server: AskedServer) -> dict[str, Any]:
    named = {"connection": "/".join(server.connection)} if server.connection else {}
    document = {"qdrant": server.url} | named
    if server.findings is None:
        return document | {"error": server.error}
    entries = [_entry(orphan, server) for orphan in server.findings.orphans]
    return document | {"orphans": entries, "otherClusters": server.findings.foreign}


def _entry(orphan: Orphan, server: AskedServer) -> dict[str, Any]:
    holding = orphan.holding
    return {
        "collection": holding.physical,
        "aliases": list(holding.aliases),
        "points": holding.points,
        "owner": (f"{holding.marker.namespace}/{holding.marker.name}" if holding.marker else None),
        "since": _since(orphan, server),
        "reason": str(orphan.kind),
        "adopt": adopt_command(orphan, server.connection),
        "delete": delete_command(holding, server),
    }


def orphans_sections(servers: Sequence[AskedServer]) -> list[Section]:
    """The findings for people: a table a server, then the commands for each collection."""
    return [section for server in servers for section in _sections(server)]


def _sections(server: AskedServer) -> list[Section]:
    named = f" (QdrantConnection {'/'.join(server.connection)})" if server.connection else ""
    if server.findings is None:
        return [Section(f"Qdrant {server.url}{named} could not be queried", "bad", notes=(server.error,))]
    entries = [_entry(orphan, server) for orphan in server.findings.orphans]
    rows = tuple(map(_row, server.findings.orphans, entries))
    foreign = server.findings.foreign
    notes = (f"{foreign} more belong to another cluster: check there",) if foreign else ()
    heading = f"Qdrant {server.url}{named}: {len(rows) or 'no'} orphan{'' if len(rows) == 1 else 's'}"
    table = Section(heading, "busy" if rows else "good", COLUMNS if rows else (), rows, notes=notes)
    return [table, *map(_commands, entries)]


def _row(orphan: Orphan, entry: dict[str, Any]) -> tuple[str, ...]:
    aliases = ", ".join(entry["aliases"]) or UNKNOWN
    whose, since = entry["owner"] or UNKNOWN, entry["since"] or UNKNOWN
    return entry["collection"], aliases, str(entry["points"]), whose, since, WHY[orphan.kind]


def _commands(entry: dict[str, Any]) -> Section:
    adopt = (f"adopt:  {entry['adopt']}",) if entry["adopt"] else ()
    return Section(entry["collection"], "quiet", commands=(*adopt, f"delete: {entry['delete']}"))


def _since(orphan: Orphan, server: AskedServer) -> str | None:
    marker = orphan.holding.marker
    if marker is None or server.findings is None or orphan.kind is not OrphanKind.OBJECT_GONE:
        return None
    return server.findings.since.get((marker.namespace, marker.name))


def delete_command(holding: Holding, server: AskedServer) -> str:
    """The command that deletes a collection and everything in it, for good."""
    key = ' -H "api-key: $QDRANT_API_KEY"' if server.has_key else ""
    return f"curl -X DELETE{key} {shlex.quote(f'{server.url}/collections/{holding.physical}')}"


def adopt_command(orphan: Orphan, connection: tuple[str, str] | None) -> str | None:
    """The command that gives the collection an owner again; None for a leftover of an object that lives."""
    if orphan.kind is OrphanKind.UNREFERENCED:
        return None
    manifest = adopting_manifest(orphan.holding, connection)
    return f"echo {shlex.quote(json.dumps(manifest))} | kubectl apply -f -"


def adopting_manifest(holding: Holding, connection: tuple[str, str] | None) -> dict[str, Any]:
    """An AgentMemory whose collection this is: the last owner's name, and the shape that it has.

    What nobody wrote down (who embedded an unmarked collection, which connection leads to it) is left to fill in:
    vectors are then the callers', the rest is in capitals.
    """
    marker, slug = holding.marker, slug_behind(holding)
    namespace, name = (marker.namespace, marker.name) if marker else (ANY_NAMESPACE, slug)
    if marker is None and connection:
        namespace = connection[0]
    embedding = _embedding(marker.embedding) if marker else {"provider": "none", "dimensions": holding.size}
    there, connected = connection or (namespace, ANY_CONNECTION)
    elsewhere = {"namespace": there} if there != namespace else {}
    spec: dict[str, Any] = {"connectionRef": {"name": connected} | elsewhere}
    spec |= {"agent": slug} if slug != name else {}
    spec |= {"embedding": embedding}
    usual = PRESETS[DEFAULT_PRESET][-1].distance
    spec |= {"index": {"distance": holding.distance}} if holding.distance != usual else {}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": "AgentMemory", "metadata": metadata, "spec": spec}


def _embedding(source: EmbeddingSource) -> dict[str, Any]:
    """The block of a spec that asks for the embedding in force."""
    secret = {"name": source.secret_name, "key": source.secret_key} if source.secret_name else None
    prefixes = source.prefixes and asdict(source.prefixes)
    fields = {
        "model": source.model,
        "prefixes": prefixes,
        "dimensions": source.dimensions,
        "baseURL": source.base_url,
        "secretRef": secret,
    }
    return {"provider": source.provider} | {name: value for name, value in fields.items() if value is not None}
