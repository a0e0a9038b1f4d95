"""Namespaces that may refer to a connection: its own, and those that its spec allows. Pure."""

from collections.abc import Mapping

from agentmemory_operator.errors import SpecInvalid
from agentmemory_operator.spec.kinds.connection import LabelRequirement, NamespaceSelector, QdrantConnection

_MAX_SELECTOR_CHARS = 1_000
_EXPRESSIONS = {"In": "{0} in ({1})", "NotIn": "{0} notin ({1})", "Exists": "{0}", "DoesNotExist": "!{0}"}


def needs_labels(connection: QdrantConnection, namespace: str) -> bool:
    """Return whether the decision for a namespace depends on its labels."""
    allowed = connection.spec.namespaces
    return namespace != connection.metadata.namespace and allowed is not None and allowed.from_ == "Selector"


def check_allowed(connection: QdrantConnection, namespace: str, labels: Mapping[str, str]) -> None:
    """Raise unless objects of a namespace may refer to the connection.

    Args:
        labels: Labels of the namespace.

    Raises:
        SpecInvalid: If they may not. The message gives the remedy.
    """
    metadata, allowed = connection.metadata, connection.spec.namespaces
    if namespace == metadata.namespace or (allowed and allowed.from_ == "All"):
        return
    if allowed is None or allowed.selector is None:
        remedy = "ask its owner to set spec.namespaces to from: All, or to from: Selector with labels of this namespace"
    elif _selects(allowed.selector, labels):
        return
    else:
        remedy = f"label the namespace {_describe(allowed.selector)[:_MAX_SELECTOR_CHARS]}"
    raise SpecInvalid(
        "ConnectionNotAllowed",
        f"spec.connectionRef.namespace: QdrantConnection {metadata.namespace}/{metadata.name} may not be used from "
        f"namespace {namespace}: {remedy}, or name a connection of this namespace",
    )


def _selects(selector: NamespaceSelector, labels: Mapping[str, str]) -> bool:
    """Return whether a selector matches. Without labels it never does: the namespace may be missing or unreadable."""
    has_labels = (selector.match_labels or {}).items() <= labels.items()
    return (
        bool(labels)
        and has_labels
        and all(_is_met(requirement, labels) for requirement in selector.match_expressions or ())
    )


def _is_met(requirement: LabelRequirement, labels: Mapping[str, str]) -> bool:
    is_present = requirement.key in labels
    match requirement.operator:
        case "Exists":
            return is_present
        case "DoesNotExist":
            return not is_present
        case "In":
            return is_present and labels[requirement.key] in (requirement.values or ())
        case "NotIn":
            return not is_present or labels[requirement.key] not in (requirement.values or ())


def _describe(selector: NamespaceSelector) -> str:
    """Describe a selector, with expressions in the syntax of kubectl."""
    labels = [f"{name}={value}" for name, value in sorted((selector.match_labels or {}).items())]
    expressions = [
        _EXPRESSIONS[expression.operator].format(expression.key, ", ".join(expression.values or ()))
        for expression in selector.match_expressions or ()
    ]
    requirements = ", ".join([*labels, *expressions])
    return f"so that it meets {requirements}" if expressions else requirements
