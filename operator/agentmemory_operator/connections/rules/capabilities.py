"""What a Qdrant server can do, from what it says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

MIN_MAX = "minMax"
IDF_CORPUS = "idfCorpus"

# Name -> the first version that has it. Sources: qdrant.tech search relevance page (formula: "as of v1.14.0"); Qdrant's
# OpenAPI document at each tag (metadata and updateFilter from v1.16, updateMode from v1.17, TurboQuant from v1.18,
# memory tiers and idf.corpus from v1.19); release notes of qdrant-client 1.20.0 (max and min in formulas).
SINCE: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "formula": (1, 14),
        "metadata": (1, 16),
        "updateFilter": (1, 16),
        "updateMode": (1, 17),
        "turboQuantization": (1, 18),
        "memoryTiers": (1, 19),
        IDF_CORPUS: (1, 19),
        MIN_MAX: (1, 20),
    }
)
JWT_RBAC = "jwtRbac"


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """What a server says of itself.

    Attributes:
        peers: of its cluster; 1 without cluster mode, None where it does not tell.
        has_jwt_rbac: whether it takes tokens with limited rights; None where it does not tell.
        disk_bytes, ram_bytes: of the machine that it runs on, in all; what is free it never tells. None where it does
            not tell these either.
    """

    version: str
    peers: int | None = None
    has_jwt_rbac: bool | None = None
    disk_bytes: int | None = None
    ram_bytes: int | None = None


def minor_of(version: str) -> tuple[int, int] | None:
    """(major, minor) of a version, None where it is no number."""
    parts = version.removeprefix("v").split(".")[:2]
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def capabilities_of(server: ServerCapabilities) -> tuple[str, ...]:
    """The names of what the server can do, sorted; none by version where that is no number."""
    minor = minor_of(server.version)
    named = {name for name, since in SINCE.items() if minor is not None and minor >= since}
    return tuple(sorted(named | ({JWT_RBAC} if server.has_jwt_rbac else set())))
