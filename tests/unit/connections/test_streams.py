"""Bytes of an object whose connection breaks off are asked for from there on, five times in all."""

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from agentmemory_operator.connections import streams
from agentmemory_operator.connections.streams import MAX_RESUMES, with_resumes
from agentmemory_operator.errors import NotFound, StorageUnavailable

CONTENT = bytes(range(10))


@dataclass
class Breaking:
    """An object of which each attempt yields a number of bytes and breaks off; the last ones yield the rest.

    Attributes:
        opens: by attempt, False of one that cannot even be opened.
    """

    yields: list[int]
    opens: list[bool] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    error: Exception = field(default_factory=lambda: StorageUnavailable("the connection broke"))

    @asynccontextmanager
    async def get(self, key: str, *, offset: int = 0) -> AsyncIterator[AsyncIterator[bytes]]:
        attempt = len(self.offsets)
        self.offsets.append(offset)
        if attempt < len(self.opens) and not self.opens[attempt]:
            raise self.error
        yield self._bytes(attempt, offset)

    async def _bytes(self, attempt: int, offset: int) -> AsyncIterator[bytes]:
        breaks = attempt < len(self.yields)
        for at in range(offset, min(offset + self.yields[attempt], len(CONTENT)) if breaks else len(CONTENT)):
            yield CONTENT[at : at + 1]
        if breaks:
            raise self.error


@pytest.fixture(autouse=True)
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    # In `streams` alone: a server in another thread of this process would sleep no more either.
    monkeypatch.setattr(streams, "asyncio", SimpleNamespace(sleep=sleep))
    return waited


async def read(objects: Any, size: int = len(CONTENT)) -> bytes:
    return b"".join([chunk async for chunk in with_resumes(objects, "key", size)])


@pytest.mark.parametrize("yields", [*itertools.product([0, 1, 3], repeat=3), (0,) * MAX_RESUMES, (1, 0, 0, 0, 2)])
async def test_every_break_is_resumed_up_to_five_times(yields: tuple[int, ...]) -> None:
    objects = Breaking(list(yields))

    assert await read(objects) == CONTENT

    assert objects.offsets == [sum(yields[:n]) for n in range(len(yields) + 1)]


async def test_what_cannot_be_opened_at_first_is_resumed_too(delays: list[float]) -> None:
    objects = Breaking([], opens=[False, False])

    assert await read(objects) == CONTENT

    assert objects.offsets == [0, 0, 0]
    assert delays == [0.2, 0.4]


@pytest.mark.parametrize("yielded", [0, 1])
async def test_the_sixth_break_ends_it_within_bounds(yielded: int, delays: list[float]) -> None:
    objects = Breaking([yielded] * 100)

    with pytest.raises(StorageUnavailable):
        await read(objects)

    assert len(objects.offsets) == MAX_RESUMES + 1
    assert sum(delays) < 10


async def test_a_break_after_the_last_byte_loses_nothing() -> None:
    objects = Breaking([len(CONTENT)] * 2)

    assert await read(objects) == CONTENT
    assert objects.offsets == [0]


async def test_an_object_that_is_gone_is_not_asked_for_again() -> None:
    objects = Breaking([], opens=[False], error=NotFound("there is no such object"))

    with pytest.raises(NotFound):
        await read(objects)

    assert objects.offsets == [0]
