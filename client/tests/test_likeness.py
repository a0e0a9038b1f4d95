"""The blocking and the async classes differ only in `await`."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from agentmemory_client import Agent, AsyncAgent, AsyncClient, AsyncUser, Client, User

PAIRS = [(Client, AsyncClient), (Agent, AsyncAgent), (User, AsyncUser)]
# Methods that return handles without a request.
BINDING = {"agent", "user"}
METHODS = [
    (waiting, awaited, name)
    for waiting, awaited in PAIRS
    for name in sorted(dict(inspect.getmembers(waiting)) | dict(inspect.getmembers(awaited)))
    if not name.startswith("_") and callable(getattr(waiting, name, getattr(awaited, name, None)))
]


def shown(method: Callable[..., Any]) -> tuple[list[str], str]:
    """Return the parameters and the result type, without the traits of async methods."""
    signature = inspect.signature(method)
    answer = re.sub(r"\bAsync(?=Iterator|Client|Agent|User)", "", str(signature.return_annotation))
    parameters = [str(part) for part in signature.parameters.values()]
    return [re.sub(r"[\w.]*\bAwaitable\[([\w.]+)\]", r"\1", part) for part in parameters], answer


@pytest.mark.parametrize(("waiting", "awaited", "name"), METHODS)
def test_both_classes_have_equal_methods(waiting: type, awaited: type, name: str) -> None:
    assert shown(getattr(waiting, name)) == shown(getattr(awaited, name))
    assert inspect.getdoc(getattr(waiting, name)) == inspect.getdoc(getattr(awaited, name))


@pytest.mark.parametrize(("waiting", "awaited", "name"), [each for each in METHODS if each[2] not in BINDING])
def test_async_methods_are_awaited(waiting: type, awaited: type, name: str) -> None:
    method = getattr(awaited, name)

    assert inspect.iscoroutinefunction(method) or "AsyncIterator" in str(inspect.signature(method).return_annotation)
    assert not inspect.iscoroutinefunction(getattr(waiting, name))


def test_method_signature_omits_bound_parameters() -> None:
    assert re.sub(r"[\w.]+\.(?=Memory)", "", str(inspect.signature(User.history))) == (
        "(self, memory_id: str) -> tuple[Memory, ...]"
    )
    assert User.history.__name__ == "history"
    user = Client().agent("a").user("u")
    assert list(inspect.signature(user.history).parameters) == ["memory_id"]
