"""What the operator reports of cleanups."""

from pydantic import Field

from agentmemory_operator.domain.status_model import StatusModel


class RemovalsStatus(StatusModel):
    """Memories by why they go."""

    expired: int | None = Field(default=None, description="Past their own expires_at.")
    ttl: int | None = Field(default=None, description="Past the time of their type.")
    decayed: int | None = Field(default=None, description="Of a recency below decayFloor.")
    pruned: int | None = Field(default=None, description="Old, and of little priority and confidence.")
    chain: int | None = Field(default=None, description="Middle versions of a chain longer than maxChainLength.")
    over_cap: int | None = Field(default=None, description="Least valuable of users over maxMemoriesPerUser.")


class HeldCleanupStatus(StatusModel):
    """A cleanup that waits for an approval."""

    digest: str | None = Field(default=None, description="What the annotation approve-cleanup has to say.")
    time: str | None = Field(
        default=None,
        description="The time that it is planned for; an approved run removes what had to go then.",
        json_schema_extra={"format": "date-time"},
    )
    would_remove: int | None = Field(default=None, description="How many memories would go.")
    memories: int | None = Field(default=None, description="Of how many.")
    reasons: RemovalsStatus | None = Field(default=None, description="Why they would go.")
    message: str | None = Field(default=None, description="Why it waits, with the way out.")


class CleanupStatus(StatusModel):
    """The last cleanup."""

    time: str | None = Field(default=None, description="When it began.", json_schema_extra={"format": "date-time"})
    duration_seconds: int | None = Field(default=None, description="How many seconds it took.")
    removed: int | None = Field(default=None, description="How many memories it removed.")
    reasons: RemovalsStatus | None = Field(default=None, description="Why they went.")
    requested_at: str | None = Field(
        default=None, description="The annotation cleanup-requested-at that was last answered."
    )
    held: HeldCleanupStatus | None = Field(
        default=None, description="What it would have removed; it removed nothing, and waits for an approval."
    )
