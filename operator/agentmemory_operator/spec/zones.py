"""Privacy zones: the zones that an agent accepts, and the keys that encrypt their memories."""

from dataclasses import dataclass
from enum import StrEnum

DEFAULT_SECRET_KEY = "key"

KEY_CREATED_KEY = "keyMadeAt"
"""Payload key: creation time, in Unix milliseconds, of the data key that encrypts the memory."""

# Suffix of the Secret entry that contains the previous wrapping key during a rotation.
PREVIOUS_SUFFIX = ".previous"


class Zone(StrEnum):
    """Protection level of a memory, from the strictest down."""

    SENSITIVE = "SENSITIVE"
    PERSONAL = "PERSONAL"
    PROFESSIONAL = "PROFESSIONAL"


# Zones that have vectors unless the object changes that. SENSITIVE has none, because vectors reveal the text.
DEFAULT_VECTORS = frozenset({Zone.PERSONAL, Zone.PROFESSIONAL})


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneSettings:
    """Settings for memories with a zone.

    Attributes:
        allowed: Zones that a memory may be stored with. Not empty.
        vectors: Allowed zones in which memories keep a vector and are found by meaning.
        words: Zones from `vectors` in which memories are also found by words.
        organisation: Owner of the keys of PROFESSIONAL memories. None only if that zone is not allowed.
        secret_name: Secret with the wrapping key, in the object's namespace.
        secret_key: Entry of the Secret with the wrapping key.
        rotate_before_ms: Data keys created before this time, in Unix milliseconds, are replaced. 0 replaces none.
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
        """Entry of the Secret with the previous wrapping key. It exists only during a rotation."""
        return self.secret_key + PREVIOUS_SUFFIX
