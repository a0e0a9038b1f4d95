"""Language model and consolidation schedule of an agent, with defaults filled in."""

from dataclasses import dataclass, field

from agentmemory_operator.spec.cron import NEVER, schedule_fault
from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.model_base import SecretKeyRef
from agentmemory_operator.spec.presets.table import ConsolidationTerms

MODEL_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Access to a language model. Contains names of Secrets, never secrets.

    Attributes:
        base_url: Base URL of the service. None is OpenAI.
        secret: Key of a Secret with the API key. None if the object names none.
        timeout_s: Timeout of one response in seconds, retries included.
    """

    model: str
    base_url: str | None = None
    secret: SecretKeyRef | None = None
    timeout_s: int = MODEL_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """Limits of one consolidation run.

    Attributes:
        calls: Maximum number of model calls.
        tokens: Maximum number of input and output tokens together.
        input_price, output_price: Price of a million tokens, in any currency. None is unknown.
        spend: Maximum cost of a run, in that currency. None is no limit.
    """

    calls: int = 20
    tokens: int = 500_000
    input_price: float | None = None
    output_price: float | None = None
    spend: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSettings:
    """Model, selection, schedule and limits of an agent's consolidation.

    Attributes:
        schedule: Cron expression in UTC or `Never`: the object's, else that of `terms`.
    """

    model: ModelSettings
    terms: ConsolidationTerms
    schedule: str
    limits: RunLimits = field(default_factory=RunLimits)

    @property
    def fault(self) -> str | None:
        """Reason why the schedule is invalid or never occurs. None if it can be due, or if it is `Never`."""
        return schedule_fault(self.schedule)

    @property
    def is_scheduled(self) -> bool:
        """True if runs start on a schedule, not only on request."""
        return self.schedule != NEVER and self.fault is None


def effective_consolidation(memory: AgentMemory) -> ConsolidationSettings | None:
    """Return the consolidation settings of an object. None if it names no model."""
    spec, model = memory.spec.consolidation, effective_model(memory)
    if spec is None or model is None:
        return None
    terms = preset_of(memory).consolidation
    limits = spec.limits.model_dump(exclude_none=True) if spec.limits else {}
    return ConsolidationSettings(
        model=model, terms=terms, schedule=spec.schedule or terms.schedule, limits=RunLimits(**limits)
    )


def duplicate_similarity(memory: AgentMemory) -> float:
    """Return the similarity at or above which a merged fact counts as a duplicate of a stored memory."""
    configured = memory.spec.consolidation.duplicate_similarity if memory.spec.consolidation else None
    return preset_of(memory).consolidation.duplicate_similarity if configured is None else configured


def effective_model(memory: AgentMemory) -> ModelSettings | None:
    """Return the language model of an object. None if the object names no model. Nothing is sent to a model then."""
    spec = memory.spec.consolidation.model if memory.spec.consolidation else None
    if spec is None:
        return None
    return ModelSettings(
        model=spec.model,
        base_url=spec.base_url,
        secret=spec.secret_ref,
        timeout_s=spec.timeout_seconds or MODEL_TIMEOUT_S,
    )
