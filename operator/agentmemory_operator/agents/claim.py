"""An object that claims a slug, and which of several has it."""

from dataclasses import dataclass

from agentmemory_operator.spec.effective.settings import AgentSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentClaim:
    """One object that claims a slug.

    Attributes:
        created: the object's creationTimestamp, RFC 3339 UTC.
        has_collection: decides between two objects of one second, as it does for the operator.
    """

    uid: str
    created: str
    settings: AgentSettings
    has_collection: bool = False

    @property
    def seniority(self) -> tuple[str, bool, str]:
        """The smallest wins the slug."""
        return self.created, not self.has_collection, self.uid
