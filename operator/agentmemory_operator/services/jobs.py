"""One object that is done once, under way: what its status says, and how it is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentmemory_operator.domain.resources import Metadata
from agentmemory_operator.domain.times import parse_time, render_second
from agentmemory_operator.ports import Clock, Cluster, Json
from agentmemory_operator.services.objects import Key, ObjectTable


@dataclass(slots=True)
class Job:
    """One object of a kind that is done once.

    Attributes:
        status: as last written here, which the watch may not have brought yet.
    """

    key: Key
    metadata: Metadata
    document: Json
    status: Json
    book: "JobBook"

    @property
    def now(self) -> str:
        """The time as statuses say it."""
        return render_second(self.book.clock.now_ms() / 1000)

    @property
    def age_s(self) -> float:
        """Seconds since it was begun; 0 before."""
        began = self.status.get("startTime")
        return (self.book.clock.now_ms() - parse_time(began)) / 1000 if began else 0.0

    async def write(self, status: Json) -> None:
        """Replace the status, where it differs."""
        if status != self.status:
            await self.book.cluster.write_status(self.key.kind, self.metadata, status)
            # Whoever reads the table before the watch has brought it.
            self.status = self.document["status"] = status
            self.book.remember(self.key, self.metadata.uid, status)

    async def set_finalizer(self, name: str, *, is_wanted: bool) -> None:
        """Hold the object's deletion up, or no more.

        Raises:
            TransientError: the object has changed since it came: the next pass knows more.
        """
        held = self.metadata.finalizers
        if (name in held) == is_wanted:
            return
        others = [other for other in held if other != name]
        await self.book.cluster.write_finalizers(self.key.kind, self.metadata, [*others, name] if is_wanted else others)

    def is_wanted(self) -> bool:
        """Tell whether the object is still there, the same one, and not being deleted."""
        document = self.book.table.get(self.key)
        if document is None:
            return False
        metadata = document["metadata"]
        return metadata.get("uid", "") == self.metadata.uid and not metadata.get("deletionTimestamp")


@dataclass(slots=True)
class JobBook:
    """Knows each object's status before the watch brings it: a step that was done must not be done again."""

    table: ObjectTable
    cluster: Cluster
    clock: Clock
    _written: dict[Key, tuple[str, Json]] = field(default_factory=dict)

    def open(self, key: Key, document: Json) -> Job:
        """Return the object as a job."""
        metadata = Metadata.model_validate(document["metadata"])
        told: Mapping[str, object] = document.get("status") or {}
        uid, status = self._written.get(key, ("", {}))
        if uid != metadata.uid or status == told:
            self._written.pop(key, None)
            status = dict(told)
        return Job(key, metadata, document, dict(status), self)

    def remember(self, key: Key, uid: str, status: Json) -> None:
        """Note what was written."""
        self._written[key] = uid, status

    def forget(self, key: Key) -> None:
        """Drop what is known of an object that is gone."""
        self._written.pop(key, None)
