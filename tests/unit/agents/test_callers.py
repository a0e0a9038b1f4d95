"""Tokens are reviewed once in a while, remembered by their hash, and forgotten in bounds."""

import asyncio

import pytest

from agentmemory_operator.agents.callers import (
    ACCEPTED_TTL_S,
    MAX_CONCURRENT_REVIEWS,
    REJECTED_TTL_S,
    RENEW_BEFORE_S,
    CallerCache,
)
from agentmemory_operator.errors import TransientError, Unauthenticated
from agentmemory_operator.spec.caller_rights import Caller, TokenReviewResult
from tests.support.engine.fakes import FakeClock

BOT = Caller("agents", "bot")


class Reviews:
    """Knows tokens that begin with `bot`; notes what it was asked."""

    def __init__(self, *, expires_at_s: float | None = None) -> None:
        self.asked: list[str] = []
        self.expires_at_s = expires_at_s
        self.is_away = False
        self.at_once, self.most_at_once = 0, 0

    async def review(self, token: str) -> TokenReviewResult:
        self.asked.append(token)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if self.is_away:
            raise TransientError("away", retry_after_s=2)
        if token.startswith("bot"):
            return TokenReviewResult(caller=BOT, expires_at_s=self.expires_at_s)
        return TokenReviewResult(refusal="not valid")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


async def refused(callers: CallerCache, token: str) -> bool:
    try:
        await callers.identify(token)
    except Unauthenticated:
        return True
    return False


async def test_a_token_is_reviewed_once_until_its_time_is_up(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    assert [await callers.identify("bot") for _ in range(3)] == [BOT] * 3
    assert len(reviews.asked) == 1

    clock.move(ms=int(ACCEPTED_TTL_S * 1000))
    await callers.identify("bot")
    assert len(reviews.asked) == 2


async def test_a_refusal_is_remembered_too_and_not_as_long(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    assert [await refused(callers, "other") for _ in range(3)] == [True] * 3
    assert len(reviews.asked) == 1

    clock.move(ms=int(REJECTED_TTL_S * 1000))
    assert await refused(callers, "other")
    assert len(reviews.asked) == 2


async def test_a_token_is_not_believed_beyond_its_own_end(clock: FakeClock) -> None:
    reviews = Reviews(expires_at_s=clock.now_ms() / 1000 + 5)
    callers = CallerCache(reviews, clock)
    await callers.identify("bot")

    clock.move(ms=5000)
    await callers.identify("bot")

    assert len(reviews.asked) == 2


async def test_requests_with_one_token_wait_for_one_review(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    assert await asyncio.gather(*(callers.identify("bot") for _ in range(50))) == [BOT] * 50
    assert len(reviews.asked) == 1


async def test_many_tokens_are_reviewed_a_few_at_a_time(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    await asyncio.gather(*(callers.identify(f"bot{number}") for number in range(3 * MAX_CONCURRENT_REVIEWS)))

    assert reviews.most_at_once == MAX_CONCURRENT_REVIEWS


async def test_a_review_that_fails_is_told_to_all_who_wait_and_not_remembered(clock: FakeClock) -> None:
    reviews = Reviews()
    reviews.is_away = True
    callers = CallerCache(reviews, clock)

    told = await asyncio.gather(*(callers.identify("bot") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in told] == [TransientError] * 3
    assert len(reviews.asked) == 1

    reviews.is_away = False
    assert await callers.identify("bot") == BOT


async def test_who_is_known_passes_while_reviews_are_away(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)
    await callers.identify("bot")

    reviews.is_away = True

    assert await callers.identify("bot") == BOT


async def test_a_request_that_is_given_up_takes_no_review_from_the_others(clock: FakeClock) -> None:
    callers = CallerCache(Reviews(), clock)
    first = asyncio.create_task(callers.identify("bot"))
    await asyncio.sleep(0)
    second = asyncio.create_task(callers.identify("bot"))
    await asyncio.sleep(0)

    first.cancel()

    assert await second == BOT


async def test_the_memory_is_bounded_and_tried_tokens_push_nobody_out(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock, max_entries=10)
    await callers.identify("bot")

    for number in range(50):
        assert await refused(callers, f"other{number}")
    await callers.identify("bot")
    assert reviews.asked.count("bot") == 1

    for number in range(10):
        await callers.identify(f"bot{number}")
    await callers.identify("bot")
    assert reviews.asked.count("bot") == 2


async def test_no_token_is_kept(clock: FakeClock) -> None:
    callers = CallerCache(Reviews(), clock)
    await callers.identify("bot-s3cret")

    assert "s3cret" not in repr(callers)


async def test_who_is_known_and_goes_on_is_reviewed_before_the_time_is_up(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)
    assert callers.find_cached("bot") is None
    await callers.identify("bot")

    clock.move(ms=int((ACCEPTED_TTL_S - RENEW_BEFORE_S) * 1000) - 1)
    assert callers.find_cached("bot") == BOT
    assert len(reviews.asked) == 1

    clock.move(ms=1)
    assert [callers.find_cached("bot") for _ in range(3)] == [BOT] * 3
    await asyncio.sleep(0.01)
    assert len(reviews.asked) == 2

    clock.move(ms=int(ACCEPTED_TTL_S * 1000) - 1)
    assert callers.find_cached("bot") == BOT


async def test_who_is_no_longer_known_is_out_with_the_review_before_the_time_is_up(clock: FakeClock) -> None:
    class Revoked(Reviews):
        async def review(self, token: str) -> TokenReviewResult:
            reviewed = await super().review(token)
            return reviewed if len(self.asked) == 1 else TokenReviewResult(refusal="not valid")

    callers = CallerCache(Revoked(), clock)
    await callers.identify("bot")
    clock.move(ms=int((ACCEPTED_TTL_S - RENEW_BEFORE_S) * 1000))
    assert callers.find_cached("bot") == BOT
    await asyncio.sleep(0.01)

    with pytest.raises(Unauthenticated):
        callers.find_cached("bot")


async def test_a_token_that_ends_soon_is_not_reviewed_again_and_again(clock: FakeClock) -> None:
    reviews = Reviews(expires_at_s=clock.now_ms() / 1000 + 5)
    callers = CallerCache(reviews, clock)
    await callers.identify("bot")

    for _ in range(3):
        assert callers.find_cached("bot") == BOT
        await asyncio.sleep(0.01)
    assert len(reviews.asked) == 1


async def test_who_is_known_waits_behind_nobody_who_is_not(clock: FakeClock) -> None:
    class Stuck(Reviews):
        async def review(self, token: str) -> TokenReviewResult:
            if token != "bot":
                await asyncio.sleep(60)
            return await super().review(token)

    callers = CallerCache(Stuck(), clock)
    await callers.identify("bot")
    strangers = [asyncio.create_task(callers.identify(f"x{number}")) for number in range(MAX_CONCURRENT_REVIEWS)]
    clock.move(ms=int(ACCEPTED_TTL_S * 1000) - 1)
    assert callers.find_cached("bot") == BOT
    await asyncio.sleep(0.01)

    clock.move(ms=1)
    assert callers.find_cached("bot") == BOT
    for stranger in strangers:
        stranger.cancel()
    await asyncio.gather(*strangers, return_exceptions=True)
