"""Privacy zones in force: the object's, with the defaults filled in."""

from agentmemory_operator.spec.kinds.agent_memory import AgentMemory
from agentmemory_operator.spec.times import parse_second
from agentmemory_operator.spec.zones import DEFAULT_SECRET_KEY, DEFAULT_VECTORS, Zone, ZoneSettings


def effective_zones(memory: AgentMemory) -> ZoneSettings | None:
    """The zones of the object, None where it has none."""
    spec = memory.spec.zones
    if spec is None:
        return None
    allowed = frozenset(map(Zone, spec.allowed))
    return ZoneSettings(
        allowed=allowed,
        vectors=allowed & DEFAULT_VECTORS if spec.vectors is None else frozenset(map(Zone, spec.vectors)),
        words=frozenset(map(Zone, spec.words or ())),
        organisation=spec.organisation,
        secret_name=spec.key_secret_ref.name,
        secret_key=spec.key_secret_ref.key or DEFAULT_SECRET_KEY,
        rotate_before_ms=parse_second(spec.rotate_keys_before) if spec.rotate_keys_before else 0,
    )
