"""Claims (the namespace that owns each slug) as ConfigMaps in the namespace of the operator's Lease.

The operator writes the ConfigMaps, and the retrieval API watches them.

16 ConfigMaps (parts) contain all claims; the hash of a slug selects its part. The set of claims is complete only if all
parts exist. If a part was deleted, the set is incomplete until the operator creates the part again.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping

from agentmemory_operator.adapters.kubernetes.cluster import CONFIG_MAP, KubernetesCluster
from agentmemory_operator.adapters.kubernetes.transport import KubernetesTransport
from agentmemory_operator.collections.rules.claims import ClaimSet, claim_from_json, claim_to_json
from agentmemory_operator.errors import NotFound
from agentmemory_operator.ports.base import Json
from agentmemory_operator.spec.kinds.agent_memory import GROUP

PREFIX = "agentmemory-claims-"
PARTS = "0123456789abcdef"
LABEL = f"{GROUP}/claims"
UNREAD = f"{GROUP}/unread-connections"


class KubernetesClaims:
    """Implements ports.ClaimStore.

    Args:
        transport: Transport to the API server.
        namespace: Namespace of the Lease.
    """

    def __init__(self, transport: KubernetesTransport, namespace: str) -> None:
        self._transport = transport
        self._folder = f"/api/v1/namespaces/{namespace}/configmaps"
        self._stored: dict[str, Json] = {}

    async def load(self) -> ClaimSet:
        """Return the stored claims. The set is incomplete if a part is missing."""
        documents = await asyncio.gather(*map(self._read, PARTS))
        self._stored = {part: document for part, document in zip(PARTS, documents, strict=True) if document is not None}
        return parse_claims(self._stored.values())

    async def save(self, claims: ClaimSet) -> None:
        """Write the parts that have changed, each by compare-and-set on its version.

        Each changed part is sent, even if another part fails. The first error is then raised: KubernetesConflict if
        another process has changed a part, else another TransientError.
        """
        bodies = _bodies(claims)
        changed = [part for part in PARTS if _content(self._stored.get(part)) != _content(bodies[part])]
        results = await asyncio.gather(*(self._write(part, bodies[part]) for part in changed), return_exceptions=True)
        self._stored |= {
            part: result for part, result in zip(changed, results, strict=True) if not isinstance(result, BaseException)
        }
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _read(self, part: str) -> Json | None:
        document: Json | None = await self._transport.find(f"{self._folder}/{PREFIX}{part}")
        return document

    async def _write(self, part: str, body: Json) -> Json:
        existing = self._stored.get(part)
        try:
            if existing is not None:
                metadata = {**body["metadata"], "resourceVersion": existing["metadata"]["resourceVersion"]}
                path = f"{self._folder}/{PREFIX}{part}"
                return dict(await self._transport.call("PUT", path, {**body, "metadata": metadata}))
        except NotFound:
            # Create the ConfigMap again, which was deleted: `body` contains all of its claims.
            pass
        return dict(await self._transport.put(self._folder, body))


async def follow_claims(
    cluster: KubernetesCluster, namespace: str, on_response: Callable[[], None]
) -> AsyncGenerator[ClaimSet, None]:
    """Yield the whole set of claims at the start, after each change, and after each gap in the watch, forever.

    Args:
        cluster: Client to watch with.
        namespace: Namespace of the Lease.
        on_response: Called at each sign of life of the API server, at least every 50 s while the watch works.
    """
    documents: dict[str, Json] = {}
    async for event, content in cluster.follow(CONFIG_MAP, on_response, namespace=namespace, selector=LABEL):
        if isinstance(content, list):
            documents = {document["metadata"]["name"]: document for document in content}
        elif event == "DELETED":
            documents.pop(content["metadata"]["name"], None)
        else:
            documents[content["metadata"]["name"]] = content
        yield parse_claims(documents.values())


def parse_claims(documents: Iterable[Json]) -> ClaimSet:
    """Parse the claims of ConfigMaps; leave out claims that are malformed or in the wrong part.

    The set is complete if all parts are among `documents`.
    """
    parts = {part: document for document in documents if (part := _part_of(document)) is not None}
    claims = {}
    for part, document in parts.items():
        for slug, text in (document.get("data") or {}).items():
            claim = claim_from_json(_parsed(text)) if part_of(slug) == part else None
            if claim is not None:
                claims[slug] = claim
    unread_names = ((parts.get(PARTS[0]) or {"metadata": {}})["metadata"].get("annotations") or {}).get(UNREAD, "")
    unread = frozenset(filter(None, unread_names.split(",")))
    return ClaimSet(claims=claims, is_complete=len(parts) == len(PARTS), unread=unread)


def part_of(slug: str) -> str:
    """Return the part that contains the claim of a slug: the first hex digit of its SHA-256."""
    return hashlib.sha256(slug.encode()).hexdigest()[0]


def _part_of(document: Json) -> str | None:
    name = str(document["metadata"]["name"])
    part = name.removeprefix(PREFIX)
    return part if name.startswith(PREFIX) and len(part) == 1 and part in PARTS else None


def _bodies(claims: ClaimSet) -> dict[str, Json]:
    """Build the bodies of all parts in one pass over the claims."""
    data: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    for slug, claim in sorted(claims.claims.items()):
        data[part_of(slug)][slug] = json.dumps(claim_to_json(claim), sort_keys=True)
    return {part: _body(part, data[part], claims) for part in PARTS}


def _body(part: str, data: Mapping[str, str], claims: ClaimSet) -> Json:
    unread = {"annotations": {UNREAD: ",".join(sorted(claims.unread))}} if part == PARTS[0] and claims.unread else {}
    metadata = {"name": f"{PREFIX}{part}", "labels": {LABEL: "true"}, **unread}
    return {"apiVersion": "v1", "kind": CONFIG_MAP, "metadata": metadata, "data": data}


def _content(document: Json | None) -> tuple[Mapping[str, str], str] | None:
    if document is None:
        return None
    annotations = document["metadata"].get("annotations") or {}
    return document.get("data") or {}, annotations.get(UNREAD, "")


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None
