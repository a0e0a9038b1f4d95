"""Rules of a QdrantConnection."""

from agentmemory_operator.spec.kinds.schema import CelRule

CONNECTION = (
    CelRule(
        "!has(self.tls) || self.url.startsWith('https://')",
        "tls needs an https:// url: change url, or remove tls",
        ".tls",
    ),
    CelRule(
        # A field without a type has no name for CEL's compiler; of a dynamic value it asks when it runs.
        "!has(self.namespaces) || !has(dyn(self).allowedNamespaces)",
        "allowedNamespaces is deprecated, and cannot be used with namespaces: keep namespaces",
        ".allowedNamespaces",
    ),
)

LABEL_REQUIREMENT = (
    CelRule(
        "!(self.operator in ['In', 'NotIn']) || has(self.values)",
        "operators In and NotIn need values: give at least one",
        ".values",
    ),
    CelRule(
        "self.operator in ['In', 'NotIn'] || !has(self.values)",
        "values cannot be used with operators Exists and DoesNotExist: remove it, or choose In or NotIn",
        ".values",
    ),
)

NAMESPACE_SELECTOR = (
    CelRule(
        "has(self.matchLabels) || has(self.matchExpressions)",
        "a selector needs matchLabels or matchExpressions: give one, or choose from All for every namespace",
    ),
)

ALLOWED_NAMESPACES = (
    CelRule(
        "self.from != 'Selector' || has(self.selector)",
        "from Selector needs selector: give it, or choose Same or All",
        ".selector",
    ),
    CelRule(
        "self.from == 'Selector' || !has(self.selector)",
        "selector applies only with from Selector: remove it, or choose from Selector",
        ".selector",
    ),
)

_OF_AGENT = ("agent", "fromUid", "toNamespace")
TAKEOVER = (
    CelRule(
        f"has(self.fromClusterId) ? !({' || '.join(f'has(self.{field})' for field in _OF_AGENT)})"
        f" : {' && '.join(f'has(self.{field})' for field in _OF_AGENT)}",
        "a takeover has either agent, fromUid and toNamespace, or fromClusterId alone: give one or the other",
    ),
)
