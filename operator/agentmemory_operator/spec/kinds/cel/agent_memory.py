"""CEL rules of an AgentMemory as a whole, and of its users, types, lifecycle and zones."""

from agentmemory_operator.spec.kinds.schema import CelRule
from agentmemory_operator.spec.zones import Zone

SLUG_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"
MAX_SLUG_CHARS = 48

NOT_A_SCOPE = CelRule(
    "self != 'global' && !self.startsWith('group:')", "global and group:NAME are scopes, not users: list them in scopes"
)

TYPE = (
    CelRule(
        "has(self.halfLifeDays) != (has(self.decay) && !self.decay)",
        "a type has exactly one of halfLifeDays and decay: false: set halfLifeDays if it decays, or only"
        " decay: false if it does not",
    ),
    CelRule(
        "!(has(self.immutable) && self.immutable) || !has(self.supersedeBy) || self.supersedeBy == 'none'",
        "immutable memories are never superseded: remove immutable, or supersedeBy",
        ".immutable",
    ),
)

CHAIN_LENGTH = CelRule(
    "self != 1", "maxChainLength cannot be 1, as a head keeps its predecessor: give 2 or more, or 0 to keep all"
)

PRUNE = (
    CelRule(
        "has(self.olderThanDays) || has(self.priorityBelow) || has(self.confidenceBelow)",
        "prune is empty: set olderThanDays, priorityBelow or confidenceBelow, or omit prune; priorityBelow: 0 removes"
        " nothing",
    ),
)

TTL = (
    CelRule("self.mode == 'Session' || has(self.days)", "a mode other than Session needs days: set it", ".days"),
    CelRule(
        "self.mode == 'SoftUnlessUsed' || !has(self.keepImportance)",
        "keepImportance applies only with mode SoftUnlessUsed: remove it, or choose that mode",
        ".keepImportance",
    ),
)

# Part of rules on the whole object, because only there metadata.name is visible.
_SLUG = "(has({0}.spec.agent) ? {0}.spec.agent : {0}.metadata.name)"
AGENT_MEMORY = (
    CelRule(
        f"size({_SLUG.format('self')}) <= {MAX_SLUG_CHARS} && {_SLUG.format('self')}.matches('{SLUG_PATTERN}')",
        f"agent (metadata.name where agent is not given) must be at most {MAX_SLUG_CHARS} lower-case letters, digits"
        " and single hyphens between them, for example support-bot: correct it, or set spec.agent",
        ".spec.agent",
    ),
    CelRule(
        f"{_SLUG.format('self')} == {_SLUG.format('oldSelf')}",
        "agent cannot change, it names the collection: set it back, or create another AgentMemory",
        ".spec.agent",
    ),
)


ZONES = (
    CelRule(
        f"!('{Zone.PROFESSIONAL}' in self.allowed) || has(self.organisation)",
        f"zone {Zone.PROFESSIONAL} needs organisation, the owner of its memories: give it, or remove the zone"
        " from allowed",
        ".organisation",
    ),
    *(
        CelRule(
            f"!has(self.{field}) || self.{field}.all(zone, zone in self.allowed)",
            f"{field} names a zone that is not allowed: remove it from {field}, or add it to allowed",
            f".{field}",
        )
        for field in ("vectors", "words")
    ),
    CelRule(
        "!has(self.words) || self.words.all(zone,"
        f" has(self.vectors) ? zone in self.vectors : zone != '{Zone.SENSITIVE}')",
        "words names a zone without vectors, which is not searched: add it to vectors, or remove it from words",
        ".words",
    ),
)

_SECOND_PATTERN = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$"
SECOND = CelRule(f"self.matches(r'{_SECOND_PATTERN}')", "must be a time in UTC, to the second: 2026-11-21T08:00:00Z")
