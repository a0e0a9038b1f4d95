"""Which language model reads an agent's memories."""

from dataclasses import dataclass

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.kinds.base import SecretKeyRef

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
