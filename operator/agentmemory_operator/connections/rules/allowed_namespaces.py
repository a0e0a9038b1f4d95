"""Who may refer to a connection: its own namespace, and those that it allows."""

from collections.abc import Mapping

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.connection import (
    LabelRequirement,
    NamespaceSelector,
    QdrantConnection,
)

_TOLD_CHARS = 1_000
_TOLD = {"In": "{0} in ({1})", "NotIn": "{0} notin ({1})", "Exists": "{0}", "DoesNotExist": "!{0}"}


def asks_labels(connection: QdrantConnection, namespace: str) -> bool:
    """Whether the answer for a namespace depends on its labels."""
    allowed = connection.spec.namespaces
    return namespace != connection.metadata.namespace and allowed is not None and allowed.from_ == "Selector"


def check_allowed(connection: QdrantConnection, namespace: str, labels: Mapping[str, str]) -> None:
    """Pass where objects of a namespace may refer to the connection.

    Args:
        labels: the namespace's.

    Raises:
        SpecInvalid: they may not; says who can change that.
    """
    metadata, allowed = connection.metadata, connection.spec.namespaces
    if namespace == metadata.namespace or (allowed and allowed.from_ == "All"):
        return
    if allowed is None or allowed.selector is None:
        way_out = (
            "ask its owner to set spec.namespaces to from: All, or to from: Selector with labels of this namespace"
        )
    elif _selects(allowed.selector, labels):
        return
    else:
        way_out = f"label the namespace {_told(allowed.selector)[:_TOLD_CHARS]}"
    raise SpecInvalid(
        "ConnectionNotAllowed",
        f"spec.connectionRef.namespace: QdrantConnection {metadata.namespace}/{metadata.name} may not be used from "
        f"namespace {namespace}: {way_out}, or name a connection of this namespace",
    )


def _selects(selector: NamespaceSelector, labels: Mapping[str, str]) -> bool:
    """Whether a namespace is selected; one without any label is not there, or nobody could read them."""
    has_all = (selector.match_labels or {}).items() <= labels.items()
    return bool(labels) and has_all and all(_is_met(one, labels) for one in selector.match_expressions or ())


def _is_met(wanted: LabelRequirement, labels: Mapping[str, str]) -> bool:
    is_there = wanted.key in labels
    match wanted.operator:
        case "Exists":
            return is_there
        case "DoesNotExist":
            return not is_there
        case "In":
            return is_there and labels[wanted.key] in (wanted.values or ())
        case "NotIn":
            return not is_there or labels[wanted.key] not in (wanted.values or ())


def _told(selector: NamespaceSelector) -> str:
    """What a namespace must meet, expressions in the words of kubectl."""
    labels = [f"{name}={value}" for name, value in sorted((selector.match_labels or {}).items())]
    met = [_TOLD[one.operator].format(one.key, ", ".join(one.values or ())) for one in selector.match_expressions or ()]
    wanted = ", ".join([*labels, *met])
    return f"so that it meets {wanted}" if met else wanted
