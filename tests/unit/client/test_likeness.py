"""The two clients differ in `await` alone."""

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

from agentmemory_operator.client import AsyncMemoryClient, MemoryClient

SYNCHRONOUS = dict(inspect.getmembers(MemoryClient, inspect.isfunction))
ASYNCHRONOUS = dict(inspect.getmembers(AsyncMemoryClient, inspect.isfunction))
PUBLIC = sorted(name for name in {**SYNCHRONOUS, **ASYNCHRONOUS} if not name.startswith("_"))


def shown(method: Callable[..., Any]) -> tuple[list[str], str]:
    """Return the parameters and the answer, as one client has it or the other."""
    signature = inspect.signature(method)
    answer = re.sub(r"\bAsync(?=Iterator|MemoryClient)", "", str(signature.return_annotation))
    return [str(part) for part in signature.parameters.values()], answer


@pytest.mark.parametrize("name", ["__init__", *PUBLIC])
def test_a_method_is_the_same_in_both_clients(name: str) -> None:
    assert name in SYNCHRONOUS
    assert name in ASYNCHRONOUS
    assert shown(SYNCHRONOUS[name]) == shown(ASYNCHRONOUS[name])
    assert inspect.getdoc(SYNCHRONOUS[name]) == inspect.getdoc(ASYNCHRONOUS[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_a_method_of_the_asynchronous_client_is_waited_for(name: str) -> None:
    method = ASYNCHRONOUS[name]

    assert inspect.iscoroutinefunction(method) or "AsyncIterator" in str(inspect.signature(method).return_annotation)
    assert not inspect.iscoroutinefunction(SYNCHRONOUS[name])


def test_a_method_is_shown_with_the_parameters_of_its_call() -> None:
    shown = str(inspect.signature(MemoryClient.history))

    assert (
        re.sub(r"[\w.]+\.(?=Memory)", "", shown)
        == "(self, agent: str, user_id: str, memory_id: str) -> tuple[Memory, ...]"
    )
    assert MemoryClient.history.__name__ == "history"
    assert "self" not in inspect.signature(MemoryClient().history).parameters
