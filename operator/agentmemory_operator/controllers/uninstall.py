"""Uninstall: delete every object, with or without a running operator, then the custom resource definitions.

1. Save the catalogue of all objects.
2. For each kind in `DELETION_ORDER`: delete the objects, wait until they are deleted, and save the catalogue again.
   With `removes_finalizers`, which requires that no operator is running, also remove the operator's finalizers.
3. Delete the definitions, and wait for that.

Every step may be repeated, and a missing object counts as deleted. So an interrupted uninstall continues when it is run
again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentmemory_operator.controllers.rules.uninstall_catalogue import (
    DELETION_ORDER,
    Json,
    catalogue_entry,
    deletes_files,
    object_key,
    operator_finalizers,
)
from agentmemory_operator.errors import AgentMemoryError, TransientError
from agentmemory_operator.spec.kinds.agent_memory import Metadata

POLL_S = 0.2
# Seconds for which the leases are watched. An operator renews its lease every 2 s.
LEASE_CHECK_S = 6.0
# Seconds without any deletion after which a wait fails. An unavailable server delays an object by up to 300 s.
PROGRESS_TIMEOUT_S = 330.0
# Seconds without a successful request after which a wait fails.
ERROR_TIMEOUT_S = 30.0
MAX_LISTED_NAMES = 5


class InstallationApi(Protocol):
    """Objects, definitions and leases in a cluster, as far as an uninstall reads or deletes them.

    Raises:
        TransientError: If the cluster cannot be read or changed now, or the user may not do so.
    """

    async def has_definition(self, kind: str) -> bool:
        """Return whether a kind is defined, even if its definition is being deleted."""
        ...

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """List the objects of a kind in one namespace; an empty namespace means all."""
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete an object with this uid. A missing object is no error."""
        ...

    async def write_finalizers(self, kind: str, metadata: Metadata, finalizers: Sequence[str]) -> None:
        """Replace an object's finalizers if it has not changed since it was read. A missing object is no error."""
        ...

    async def delete_definition(self, kind: str) -> None:
        """Delete a definition with all its objects. A missing definition is no error."""
        ...

    async def read_lease_renewals(self) -> dict[str, str]:
        """Return the last renewal time of each operator's lease by namespace, as text to compare."""
        ...


@dataclass(frozen=True, slots=True)
class Installation:
    """Installation as read from the cluster.

    Attributes:
        definitions: Defined kinds.
        objects: All objects of these kinds.
        operators: Namespaces with a running operator; empty if none runs. If several run, some may be missing.
    """

    definitions: tuple[str, ...]
    objects: tuple[Json, ...]
    operators: tuple[str, ...]

    @property
    def waiting_objects(self) -> list[Json]:
        """Objects with a finalizer of the operator, which wait for it when they are deleted."""
        return [document for document in self.objects if operator_finalizers(document)]


async def read_installation(installed: InstallationApi) -> Installation:
    """Read the definitions, the objects and the running operators. Takes at least 6 s if no operator is running.

    Raises:
        TransientError: As in `InstallationApi`.
    """
    operators = await _operators(installed)
    definitions = tuple([kind for kind in DELETION_ORDER if await installed.has_definition(kind)])
    objects = [document for kind in definitions for document in await _objects(installed, kind)]
    return Installation(definitions, tuple(objects), operators)


async def _operators(installed: InstallationApi) -> tuple[str, ...]:
    # Detect a running operator by a changed renewal time. Its age proves nothing, because clocks differ.
    before, deadline_s = await installed.read_lease_renewals(), time.monotonic() + LEASE_CHECK_S
    while time.monotonic() < deadline_s:
        await asyncio.sleep(POLL_S)
        now = await installed.read_lease_renewals()
        if renewed := tuple(namespace for namespace, renewal in now.items() if before.get(namespace) != renewal):
            return renewed
    return ()


async def _objects(installed: InstallationApi, kind: str) -> list[Json]:
    """List the objects of a kind; none if its definition is deleted."""
    try:
        return await installed.list_in(kind, "")
    except TransientError:
        if await installed.has_definition(kind):
            raise
        return []


@dataclass(slots=True)
class Uninstall:
    """Carries out the steps of an uninstall (see the module).

    Attributes:
        removes_finalizers: True to remove the operator's finalizers, because no operator is running.
        save_catalogue: Saves the catalogue, replacing the previous one.
    """

    installed: InstallationApi
    removes_finalizers: bool
    save_catalogue: Callable[[Sequence[Json]], None]
    print_message: Callable[[str], None]
    _known: dict[tuple[str, str, str], Json] = field(default_factory=dict)

    async def run(self, target: Installation) -> None:
        """Delete every object and definition. An interrupted run may be repeated.

        Raises:
            AgentMemoryError: If `check_uninstallable` fails, or nothing was deleted for 330 s.
            TransientError: If every request of a wait failed for 30 s, or a single request outside the waits failed.
            OSError: If the catalogue cannot be saved.
        """
        check_uninstallable(target, is_released=self.removes_finalizers)
        self._note(target.objects)
        for kind in DELETION_ORDER:
            await self._end_objects(kind)
            # Add the final snapshots, which the deletion of agents creates. The saved catalogue also lacks snapshots
            # with deleted files: `_end_objects` has removed them.
            self._note(await _objects(self.installed, "MemorySnapshot"))
        for kind in DELETION_ORDER:
            await self.installed.delete_definition(kind)
        await self._until(self._defined, "definitions")
        self.print_message("the definitions are deleted")

    def _note(self, objects: Sequence[Json]) -> None:
        self._known |= {object_key(document): document for document in objects}
        self.save_catalogue([catalogue_entry(document) for document in self._known.values()])

    async def _end_objects(self, kind: str) -> None:
        async def delete_and_list() -> list[str]:
            objects = await _objects(self.installed, kind)
            self._known |= {object_key(document): document for document in objects}
            for document in objects:
                await self._end(document)
            return ["{} {}/{}".format(*object_key(document)) for document in objects]

        await self._until(delete_and_list, "objects")
        deleted_keys = [key for key, document in self._known.items() if key[0] == kind and deletes_files(document)]
        if not self.removes_finalizers:
            for key in deleted_keys:
                del self._known[key]

    async def _end(self, document: Json) -> None:
        kind, metadata = document["kind"], Metadata.model_validate(document["metadata"])
        if metadata.deletion_timestamp is None:
            await self.installed.delete_object(kind, metadata)
        elif self.removes_finalizers and (own_finalizers := operator_finalizers(document)):
            remaining = [name for name in metadata.finalizers if name not in own_finalizers]
            await self.installed.write_finalizers(kind, metadata, remaining)

    async def _defined(self) -> list[str]:
        return [kind for kind in DELETION_ORDER if await self.installed.has_definition(kind)]

    async def _until(self, list_names: Callable[[], Awaitable[list[str]]], label: str) -> None:
        """Poll `list_names` until it returns no names.

        Raises:
            AgentMemoryError: If nothing was deleted for 330 s.
            TransientError: If every request failed for 30 s.
        """
        min_names, last_progress_s, last_response_s = None, time.monotonic(), time.monotonic()
        while True:
            try:
                names = await list_names()
            except TransientError:
                # Retry: the object has changed since it was read, or the API server is unavailable for a moment.
                if time.monotonic() > last_response_s + ERROR_TIMEOUT_S:
                    raise
                await asyncio.sleep(POLL_S)
                continue
            if not names:
                return
            last_response_s = time.monotonic()
            if min_names is None or len(names) < min_names:
                min_names, last_progress_s = len(names), last_response_s
            if last_response_s > last_progress_s + PROGRESS_TIMEOUT_S:
                raise _stuck(names, label)
            await asyncio.sleep(POLL_S)


def _stuck(names: Sequence[str], label: str) -> AgentMemoryError:
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return AgentMemoryError(
        f"{label} are still there: {', '.join(names[:MAX_LISTED_NAMES])}{more}. See their events and finalizers;"
        " run the command again to continue"
    )


def check_uninstallable(target: Installation, *, is_released: bool) -> None:
    """Raise unless the objects can be deleted in the requested way.

    Args:
        is_released: True to remove the operator's finalizers, because no operator is running.

    Raises:
        AgentMemoryError: If objects would wait forever for an operator, or a running operator would act on their
            policies although `is_released` is set.
    """
    if is_released and target.operators:
        raise AgentMemoryError(
            f"--release removes finalizers, but the operator in namespace {target.operators[0]} adds them again, or"
            " deletes what the objects say: stop it first (`kubectl delete -f examples/install/`)"
        )
    if target.waiting_objects and not target.operators and not is_released:
        raise AgentMemoryError(
            f"{len(target.waiting_objects)} objects wait for an operator, but none is running: start one, which applies"
            " their deletionPolicy, or add --release, which leaves their collections and files in Qdrant and S3"
        )
