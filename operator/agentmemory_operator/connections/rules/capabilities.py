"""Capabilities of a Qdrant server, derived from its version and configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

SCORE_EXTREMES = "minMax"
IDF_CORPUS = "idfCorpus"

# Name -> first version that has it. Sources: qdrant.tech search relevance page (formula: "as of v1.14.0"); Qdrant's
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
        SCORE_EXTREMES: (1, 20),
    }
)
JWT_RBAC = "jwtRbac"


@dataclass(frozen=True, slots=True)
class ServerCapabilities:
    """Facts that a server reports about itself.

    Attributes:
        peers: Number of peers in its cluster. 1 without cluster mode, None if not reported.
        has_jwt_rbac: True if it accepts tokens with limited rights. None if not reported.
        disk_bytes, ram_bytes: Total disk and RAM of its machine. None if not reported; free space never is.
    """

    version: str
    peers: int | None = None
    has_jwt_rbac: bool | None = None
    disk_bytes: int | None = None
    ram_bytes: int | None = None


def parse_version(version: str) -> tuple[int, int] | None:
    """Parse a version to (major, minor). None if either is missing or not numeric."""
    parts = version.removeprefix("v").split(".")[:2]
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        return None
    return int(parts[0]), int(parts[1])


def derive_capabilities(server: ServerCapabilities) -> tuple[str, ...]:
    """Return the names of the server's capabilities, sorted. If its version is not numeric, none of `SINCE`."""
    minor = parse_version(server.version)
    supported = {name for name, since in SINCE.items() if minor is not None and minor >= since}
    return tuple(sorted(supported | ({JWT_RBAC} if server.has_jwt_rbac else set())))
