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
)
