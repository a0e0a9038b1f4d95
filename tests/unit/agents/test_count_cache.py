"""CountCache: cached counts of memories per user and filter."""

import asyncio

import pytest

from agentmemory_operator.agents import count_cache
from agentmemory_operator.agents.count_cache import CountCache
from agentmemory_operator.errors import StoreUnavailable


class CountedSizes:
    """A `CountCache` with a clock, over an engine that counts its calls."""

    def __init__(self) -> None:
        self.size, self.asked, self.now_s = 5, 0, 0.0
        self.sizes = CountCache(lambda: self.now_s)

    async def count(self) -> int:
        self.asked += 1
        return self.size

    async def get(self, user_id: str = "u", key: object = (), *, is_whole: bool = False) -> int:
        return await self.sizes.get(user_id, key, self.count, is_whole=is_whole)


async def test_count_is_cached_for_ten_seconds() -> None:
    engine = CountedSizes()
    for now_s in (0, 6, 10, 16):
        engine.now_s = now_s
        await engine.get()

    assert engine.asked == 2


async def test_ageing_count_is_renewed_in_background() -> None:
    engine = CountedSizes()
    await engine.get()
    engine.now_s, engine.size = 7.0, 6

    assert [await engine.get(), await engine.get()] == [5, 5]
    await asyncio.sleep(0)
    engine.now_s = 16.0

    assert await engine.get() == 6
    assert engine.asked == 2


async def test_failed_renewal_is_retried_by_the_next_reader() -> None:
    engine = CountedSizes()
    await engine.get()
    engine.now_s = 9.0

    async def refuse() -> int:
        raise StoreUnavailable("away")

    assert await engine.sizes.get("u", (), refuse) == 5
    await asyncio.sleep(0)
    engine.now_s = 10.0

    with pytest.raises(StoreUnavailable):
        await engine.sizes.get("u", (), refuse)


async def test_write_evicts_counts_of_its_user_only() -> None:
    engine = CountedSizes()
    await engine.get("u")
    await engine.get("v")

    engine.sizes.forget("u")
    await engine.get("u")
    await engine.get("v")

    assert engine.asked == 3


async def test_count_overtaken_by_write_is_not_cached() -> None:
    engine = CountedSizes()

    async def count_while_written() -> int:
        engine.sizes.forget("u")
        return 5

    await engine.sizes.get("u", (), count_while_written)
    await engine.get("u")

    assert engine.asked == 1


async def test_cache_size_is_limited() -> None:
    engine = CountedSizes()
    for number in range(count_cache.MAX_USERS + 5):
        await engine.get(f"u{number}")
    for number in range(3 * count_cache.MAX_FILTERS):
        await engine.get("u", number)

    assert len(engine.sizes._counts) <= count_cache.MAX_USERS
    assert len(engine.sizes._counts["u"]) <= count_cache.MAX_FILTERS


async def test_write_to_shared_scope_evicts_all() -> None:
    engine = CountedSizes()
    await engine.get("u")
    await engine.get("v")

    engine.sizes.forget("group:team")
    await engine.get("u")
    await engine.get("v")

    assert engine.asked == 4


async def test_add_stored_raises_total_of_its_user_only() -> None:
    engine = CountedSizes()
    await engine.get("u", "whole", is_whole=True)
    await engine.get("u", "narrowed")
    await engine.get("v", "whole", is_whole=True)
    engine.now_s = 1.0

    engine.sizes.add_stored("u", 3, since_s=1.0)
    engine.size = 8

    assert [await engine.get("u", "whole", is_whole=True), await engine.get("v", "whole", is_whole=True)] == [8, 5]
    assert engine.asked == 3
    await engine.get("u", "narrowed")
    assert engine.asked == 4


async def test_add_stored_evicts_a_later_count() -> None:
    """The later count may already include the new memories."""

    engine = CountedSizes()
    engine.now_s = 2.0
    await engine.get(is_whole=True)
    engine.now_s = 3.0

    engine.sizes.add_stored("u", 1, since_s=1.0)
    await engine.get(is_whole=True)

    assert engine.asked == 2


async def test_count_overtaken_by_add_is_not_cached() -> None:
    engine = CountedSizes()

    async def count_while_stored() -> int:
        engine.sizes.add_stored("u", 1, since_s=0.0)
        return 5

    await engine.sizes.get("u", (), count_while_stored, is_whole=True)
    await engine.get(is_whole=True)

    assert engine.asked == 1


async def test_add_stored_does_not_extend_ttl() -> None:
    engine = CountedSizes()
    await engine.get(is_whole=True)
    for engine.now_s in (1.0, 5.0, 9.0):
        engine.sizes.add_stored("u", 1, since_s=engine.now_s)
    engine.now_s = 10.0

    await engine.get(is_whole=True)

    assert engine.asked == 2


async def test_add_stored_in_shared_scope_evicts_all() -> None:
    engine = CountedSizes()
    await engine.get("u", is_whole=True)
    engine.now_s = 1.0

    engine.sizes.add_stored("global", 1, since_s=1.0)
    await engine.get("u", is_whole=True)

    assert engine.asked == 2
