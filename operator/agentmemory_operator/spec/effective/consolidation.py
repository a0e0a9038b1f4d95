"""Which language model reads an agent's memories, and when it consolidates them."""

from dataclasses import dataclass, field

from agentmemory_operator.spec.effective.revisions import preset_of
from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.base import SecretKeyRef
from agentmemory_operator.spec.presets.table import ConsolidationTerms
from agentmemory_operator.spec.schedule import NEVER, schedule_fault

MODEL_TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """How to reach a language model; names, never secrets.

    Attributes:
        base_url: None is OpenAI's own.
        timeout_s: of one answer, retries included.
    """

    model: str
    base_url: str | None = None
    secret: SecretKeyRef | None = None
    timeout_s: int = MODEL_TIMEOUT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLimits:
    """What a run may use.

    Attributes:
        calls: of the model.
        tokens: in both directions together.
        input_price, output_price: of a million tokens, in any currency; None is not known.
        spend: what a run may cost, in that currency; None is any sum.
    """

    calls: int = 20
    tokens: int = 500_000
    input_price: float | None = None
    output_price: float | None = None
    spend: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsolidationSettings:
    """How an agent's memories are consolidated."""

    model: ModelSettings
    terms: ConsolidationTerms
    schedule: str
    limits: RunLimits = field(default_factory=RunLimits)

    @property
    def fault(self) -> str | None:
        """Why the schedule can never be followed; None where it can."""
        return schedule_fault(self.schedule)

    @property
    def is_scheduled(self) -> bool:
        """Whether runs are made without being asked for."""
        return self.schedule != NEVER and self.fault is None


def effective_consolidation(memory: AgentMemory) -> ConsolidationSettings | None:
    """How an object's memories are consolidated; None where it names no model."""
    spec, model = memory.spec.consolidation, effective_model(memory)
    if spec is None or model is None:
        return None
    terms = preset_of(memory).consolidation
    given = spec.limits.model_dump(exclude_none=True) if spec.limits else {}
    return ConsolidationSettings(
        model=model, terms=terms, schedule=spec.schedule or terms.schedule, limits=RunLimits(**given)
    )


def duplicate_similarity(memory: AgentMemory) -> float:
    """The similarity from which a merged fact says nothing new."""
    given = memory.spec.consolidation.duplicate_similarity if memory.spec.consolidation else None
    return preset_of(memory).consolidation.duplicate_similarity if given is None else given


def effective_model(memory: AgentMemory) -> ModelSettings | None:
    """The model of an object, None where nothing is sent to any."""
    spec = memory.spec.consolidation.model if memory.spec.consolidation else None
    if spec is None:
        return None
    return ModelSettings(
        model=spec.model,
        base_url=spec.base_url,
        secret=spec.secret_ref,
        timeout_s=spec.timeout_seconds or MODEL_TIMEOUT_S,
    )
