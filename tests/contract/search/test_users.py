"""Listing users on a real engine."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentmemory_operator.errors import StoreUnavailable
from agentmemory_operator.ports.points import ForwardingPoints, PointCall, PointStore
from agentmemory_operator.search import users
from agentmemory_operator.search.users import list_users
from tests.support.engine.agents import World


class LimitedStore(ForwardingPoints):
    """A store that fails to count more than `max_values` values in one request, as for a response that is too large."""

    def __init__(self, store: PointStore, max_values: int) -> None:
        self._store, self._max_values = store, max_values
        self.limits: list[int] = []

    async def close(self) -> None: ...

    async def read(self, call: PointCall[Any]) -> Any:
        if call.method is PointStore.facet:
            self.limits.append(call.options["limit"])
            if self.limits[-1] > self._max_values:
                raise StoreUnavailable("the response is too large")
        return await call.make(self._store)

    async def write(self, call: PointCall[None]) -> None:
        await call.make(self._store)


@pytest.mark.parametrize(
    ("max_values", "limits"),
    [
        pytest.param(10, [10], id="one request"),
        pytest.param(2, [10, 2, 2, 2], id="too large"),
    ],
)
async def test_all_users_are_counted_at_once_if_possible(
    world: World, max_values: int, limits: Sequence[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each further request excludes the users before, which takes the engine long."""
    monkeypatch.setattr(users, "MAX_LISTED_USERS", 10)
    monkeypatch.setattr(users, "USERS_PER_REQUEST", 2)
    for name in "abcde":
        await world.add("tea", user_id=name)
    store = LimitedStore(world.agent.store, max_values)

    page = await list_users(replace(world.agent, store=store), limit=50)

    assert ([user.user_id for user in page.users], page.is_truncated) == (list("abcde"), False)
    assert store.limits == limits
