"""Names of Kubernetes objects, as fields of a spec."""

from typing import Annotated

from pydantic import Field

OBJECT_NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=OBJECT_NAME_PATTERN)]
NamespaceName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
HostName = Annotated[
    str, Field(min_length=1, max_length=259, pattern=r"^[A-Za-z0-9._-]+(:[0-9]{1,5})?$", description="One host.")
]
