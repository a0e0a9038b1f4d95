"""Objects that are carried out once, as people's commands make, read and annotate them."""

from collections.abc import Mapping
from typing import Protocol

from agentmemory_operator.domain.resources import Metadata
from agentmemory_operator.ports import Json, Secrets


class JobObjects(Secrets, Protocol):
    """Objects of our kinds in a cluster, or in the folder of manifests that stands in for it in development."""

    async def read_object(self, kind: str, namespace: str, name: str) -> Json:
        """Return one object.

        Raises:
            NotFound: there is no such object.
        """
        ...

    async def list_in(self, kind: str, namespace: str) -> list[Json]:
        """Return the objects of a kind in one namespace, or in all where that is empty."""
        ...

    async def create_object(self, document: Json) -> bool:
        """Create an object; tell whether it was not there before. What is refused is a TransientError."""
        ...

    async def delete_object(self, kind: str, metadata: Metadata) -> None:
        """Delete the object of that uid; one that is gone is no error."""
        ...

    async def annotate(self, kind: str, metadata: Metadata, annotations: Mapping[str, str | None]) -> None:
        """Set annotations, or take off where None; raise TransientError if the object was made anew since."""
        ...
