"""Apply events of a source (a watch or a folder) to the retrieval API's directory of agents."""

import logging
from collections.abc import Callable, Generator
from dataclasses import replace

from agentmemory_operator.agents.agent_objects import AgentObjects, shown_part
from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.collections.rules.claims import AgentClaim, ClaimSet
from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.ports.base import Json
from agentmemory_operator.runtime.object_table import AGENT_MEMORY, Key, ObjectTable, has_collection, key_of, uid_of
from agentmemory_operator.runtime.tasks import run_without_pause
from agentmemory_operator.spec.effective.settings import effective_settings, read_subjects
from agentmemory_operator.spec.kinds.parse import access_notice

log = logging.getLogger(__name__)


class ApiFeed:
    """Updates the object table with each event, and the directory of agents with those of AgentMemories.

    An object that becomes invalid keeps its last valid settings. Only its subjects (`spec.access`) are still read from
    the invalid document, so that a revocation takes effect.

    Args:
        forget_agent: Called with the former slug of an object that was deleted, recreated under its name, or changed
            its slug.
        objects: Is told which kinds have been read completely. None if nothing shows them.
    """

    def __init__(
        self,
        table: ObjectTable,
        directory: AgentDirectory,
        forget_agent: Callable[[str], None] = lambda slug: None,
        objects: AgentObjects | None = None,
    ) -> None:
        self._table = table
        self._directory = directory
        self._forget_agent = forget_agent
        self._objects = objects
        self._served: dict[Key, AgentClaim] = {}

    def apply_event(self, event: str, document: Json) -> None:
        """Apply one watch event.

        Args:
            event: Type of the event. "DELETED" removes the object, every other type adds or updates it.
        """
        key = key_of(document)
        if event == "DELETED":
            self._table.remove(key)
        else:
            self._table.put(shown_part(document))
        if key.kind == AGENT_MEMORY:
            self._serve(event, key, self._table.get(key) or document)

    def apply_claims(self, claims: ClaimSet) -> None:
        """Replace the claims of slugs. An incomplete set is ignored, and the last complete one stays in use."""
        if claims.is_complete:
            self._directory.claims = claims

    def apply_list(self, kind: str, documents: list[Json], *, namespace: str = "") -> None:
        """Apply a complete list of the objects of a kind: update those in it and remove all others.

        Args:
            namespace: Namespace that was listed; "" if all were.
        """
        run_without_pause(self.iter_list(kind, documents, namespace=namespace))

    def iter_list(self, kind: str, documents: list[Json], *, namespace: str = "") -> Generator[None, None, None]:
        """Apply a list as `apply_list` does, and yield after each object: there may be tens of thousands."""
        present = {key_of(document) for document in documents}
        for key in self._table.keys(kind):
            document = self._table.get(key)
            if key not in present and document is not None and namespace in ("", key.namespace):
                self.apply_event("DELETED", document)
        for document in documents:
            self.apply_event("ADDED", document)
            yield
        self.record_list(kind, namespace)

    def record_list(self, kind: str, namespace: str = "") -> None:
        """Record that all objects of a kind have been read, of one namespace or, with '', of all."""
        if self._objects is not None:
            self._objects.record_list(kind, namespace)

    def _serve(self, event: str, key: Key, document: Json) -> None:
        old_claim = self._served.get(key)
        new_claim = None if event == "DELETED" else _claim_of(self._table, key, document, old_claim)
        if old_claim is not None and (new_claim is None or _place_of(new_claim) != _place_of(old_claim)):
            # Remove the old claim: the object was deleted, recreated under the same name, or changed its slug.
            del self._served[key]
            self._directory.remove(old_claim.settings.slug, old_claim.uid)
            self._forget_agent(old_claim.settings.slug)
        if new_claim is not None:
            self._served[key] = new_claim
            self._directory.put(new_claim)


def _claim_of(table: ObjectTable, key: Key, document: Json, old_claim: AgentClaim | None) -> AgentClaim | None:
    """Build the claim of an object. An invalid one keeps its last valid settings; None if there are none."""
    try:
        settings = effective_settings(table.parse(document))
    except SpecInvalid as exc:
        if old_claim is None or old_claim.uid != uid_of(document):
            log.warning("not serving %s: %s", key, exc)
            return None
        log.warning("%s is not valid: %s. %s", key, exc, access_notice(document))
        settings = replace(old_claim.settings, subjects=read_subjects(document))
    return AgentClaim(
        uid=uid_of(document),
        created=document["metadata"].get("creationTimestamp") or "",
        settings=settings,
        has_collection=has_collection(document),
    )


def _place_of(claim: AgentClaim) -> tuple[str, str]:
    """Return slug and UID. If one of them changes, the directory must remove the old claim."""
    return claim.settings.slug, claim.uid
