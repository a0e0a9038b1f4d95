"""What waits and what is awaited differ in `await` alone."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from agentmemory_client import Agent, AsyncAgent, AsyncClient, AsyncUser, Client, User

PAIRS = [(Client, AsyncClient), (Agent, AsyncAgent), (User, AsyncUser)]
# Return what has calls, and ask nothing.
BINDING = {"agent", "user"}
METHODS = [
    (waiting, awaited, name)
    for waiting, awaited in PAIRS
    for name in sorted(dict(inspect.getmembers(waiting)) | dict(inspect.getmembers(awaited)))
    if not name.startswith("_") and callable(getattr(waiting, name, getattr(awaited, name, None)))
]


def shown(method: Callable[..., Any]) -> tuple[list[str], str]:
    """Return the parameters and the answer, as one has it or the other."""
    signature = inspect.signature(method)
    answer = re.sub(r"\bAsync(?=Iterator|Client|Agent|User)", "", str(signature.return_annotation))
    parameters = [str(part) for part in signature.parameters.values()]
    return [re.sub(r"[\w.]*\bAwaitable\[([\w.]+)\]", r"\1", part) for part in parameters], answer


@pytest.mark.parametrize(("waiting", "awaited", "name"), METHODS)
def test_a_method_is_the_same_in_both(waiting: type, awaited: type, name: str) -> None:
    assert shown(getattr(waiting, name)) == shown(getattr(awaited, name))
    assert inspect.getdoc(getattr(waiting, name)) == inspect.getdoc(getattr(awaited, name))


@pytest.mark.parametrize(("waiting", "awaited", "name"), [each for each in METHODS if each[2] not in BINDING])
def test_a_method_of_the_asynchronous_is_waited_for(waiting: type, awaited: type, name: str) -> None:
    method = getattr(awaited, name)

    assert inspect.iscoroutinefunction(method) or "AsyncIterator" in str(inspect.signature(method).return_annotation)
    assert not inspect.iscoroutinefunction(getattr(waiting, name))


def test_a_method_is_shown_with_the_parameters_of_its_call_but_for_those_bound() -> None:
    assert re.sub(r"[\w.]+\.(?=Memory)", "", str(inspect.signature(User.history))) == (
        "(self, memory_id: str) -> tuple[Memory, ...]"
    )
    assert User.history.__name__ == "history"
    user = Client().agent("a").user("u")
    assert list(inspect.signature(user.history).parameters) == ["memory_id"]
