"""Resuming a broken download from the last byte, at most five times."""

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
    """An object whose first attempts break after a number of bytes; later attempts yield the rest.

    Attributes:
        yields: Bytes until the break, by attempt.
        opens: By attempt, False if it cannot be opened.
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

    # Patch only `streams`: servers in other threads of this process must still sleep.
    monkeypatch.setattr(streams, "asyncio", SimpleNamespace(sleep=sleep))
    return waited


async def read(objects: Any, size: int = len(CONTENT)) -> bytes:
    return b"".join([chunk async for chunk in with_resumes(objects, "key", size)])


@pytest.mark.parametrize("yields", [*itertools.product([0, 1, 3], repeat=3), (0,) * MAX_RESUMES, (1, 0, 0, 0, 2)])
async def test_break_is_resumed_up_to_five_times(yields: tuple[int, ...]) -> None:
    objects = Breaking(list(yields))

    assert await read(objects) == CONTENT

    assert objects.offsets == [sum(yields[:n]) for n in range(len(yields) + 1)]


async def test_failure_to_open_is_resumed(delays: list[float]) -> None:
    objects = Breaking([], opens=[False, False])

    assert await read(objects) == CONTENT

    assert objects.offsets == [0, 0, 0]
    assert delays == [0.2, 0.4]


@pytest.mark.parametrize("yielded", [0, 1])
async def test_sixth_break_raises_within_10_s(yielded: int, delays: list[float]) -> None:
    objects = Breaking([yielded] * 100)

    with pytest.raises(StorageUnavailable):
        await read(objects)

    assert len(objects.offsets) == MAX_RESUMES + 1
    assert sum(delays) < 10


async def test_break_after_last_byte_is_ignored() -> None:
    objects = Breaking([len(CONTENT)] * 2)

    assert await read(objects) == CONTENT
    assert objects.offsets == [0]


async def test_missing_object_is_not_retried() -> None:
    objects = Breaking([], opens=[False], error=NotFound("there is no such object"))

    with pytest.raises(NotFound):
        await read(objects)

    assert objects.offsets == [0]
