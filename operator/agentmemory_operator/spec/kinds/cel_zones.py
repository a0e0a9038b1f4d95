"""CEL rules of `spec.zones`; what holds for `cel` holds here."""

from agentmemory_operator.spec.kinds.schema import CelRule
from agentmemory_operator.spec.zones import Zone

ZONES = (
    CelRule(
        f"!('{Zone.PROFESSIONAL}' in self.allowed) || has(self.organisation)",
        f"zone {Zone.PROFESSIONAL} needs organisation, whose key its memories lie under: give it, or remove the zone"
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
        "words names a zone that keeps no vectors, and what has none is not searched: add it to vectors, or remove it"
        " from words",
        ".words",
    ),
)

_SECOND_PATTERN = "^[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]Z$"
SECOND = CelRule(f"self.matches(r'{_SECOND_PATTERN}')", "must be a time in UTC, to the second: 2026-11-21T08:00:00Z")
