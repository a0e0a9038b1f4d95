"""Privacy zones: which an agent takes, and under whose keys their memories lie."""

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_SECRET_KEY = "key"

KEY_MADE_KEY = "keyMadeAt"
"""The payload key that says, in Unix milliseconds, when the data key was made that a memory is sealed with."""

# Of the entry beside it that holds the wrapping key before this one, while it is rotated.
PREVIOUS_SUFFIX = ".previous"


class Zone(StrEnum):
    """How far a memory is kept from whoever holds no keys, from the strictest down."""

    SENSITIVE = "SENSITIVE"
    PERSONAL = "PERSONAL"
    PROFESSIONAL = "PROFESSIONAL"


# Vectors give words back: the strictest zone has none unless the object says so.
DEFAULT_VECTORS = frozenset({Zone.PERSONAL, Zone.PROFESSIONAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneSettings:
    """What holds for memories with a zone.

    Attributes:
        allowed: zones that a memory may be stored with; not empty.
        vectors: of these, zones whose memories keep a vector and are found by meaning.
        words: of these, zones whose memories are found by words too.
        organisation: whose keys PROFESSIONAL memories lie under; None only where that zone is not allowed.
        secret_name: the Secret with the wrapping key, in the object's namespace.
        secret_key: the entry of the Secret.
        rotate_before_ms: data keys made before are replaced, Unix milliseconds; 0 replaces none.
    """

    allowed: frozenset[Zone]
    vectors: frozenset[Zone]
    secret_name: str
    words: frozenset[Zone] = frozenset()
    organisation: str | None = None
    secret_key: str = DEFAULT_SECRET_KEY
    rotate_before_ms: int = 0

    @property
    def previous_key(self) -> str:
        """The entry of the Secret with the wrapping key before this one; there only while it is rotated."""
        return self.secret_key + PREVIOUS_SUFFIX
