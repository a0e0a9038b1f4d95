"""Scopes: what stands in a user's place where memories belong to many, a group or everybody.

`user_id` is a user, `group:NAME` or `global`. A search of a user includes the scopes that it names.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

GLOBAL, GROUP_PREFIX = "global", "group:"
SCOPE_PATTERN = r"^(global|group:[A-Za-z0-9][A-Za-z0-9._-]{0,62})$"
_SCOPE = re.compile(SCOPE_PATTERN)

# What a search includes that says nothing of it, as far as its caller may read it.
DEFAULT_SCOPES = (GLOBAL,)
MAX_SCOPES = 32


@dataclass(frozen=True, slots=True)
class Scopes:
    """Which scopes a caller may use.

    Attributes:
        is_any: all there are: the modes without identities.
    """

    names: frozenset[str] = frozenset()
    is_any: bool = False

    def allow(self, user_id: str) -> bool:
        """Tell whether the caller may act for this user or scope; for a user always."""
        return self.is_any or not is_shared(user_id) or user_id in self.names

    def allowed(self, scopes: Iterable[str]) -> tuple[str, ...]:
        """Return those that the caller may use."""
        return tuple(scope for scope in scopes if self.allow(scope))


def is_shared(user_id: str) -> bool:
    """Tell whether it is no user, but a scope, well-formed or not."""
    return user_id == GLOBAL or user_id.startswith(GROUP_PREFIX)


def is_well_formed(user_id: str) -> bool:
    """Tell whether it is a user, or a scope as scopes are written."""
    return not is_shared(user_id) or _SCOPE.fullmatch(user_id) is not None
