"""CallerCache: token reviews cached by hash, with expiry and a size limit."""

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
    """Accepts tokens that start with `bot`; records the reviewed tokens."""

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


async def is_refused(callers: CallerCache, token: str) -> bool:
    try:
        await callers.identify(token)
    except Unauthenticated:
        return True
    return False


async def test_token_is_reviewed_once_per_ttl(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    assert [await callers.identify("bot") for _ in range(3)] == [BOT] * 3
    assert len(reviews.asked) == 1

    clock.move(ms=int(ACCEPTED_TTL_S * 1000))
    await callers.identify("bot")
    assert len(reviews.asked) == 2


async def test_rejection_is_cached_for_a_shorter_time(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    assert [await is_refused(callers, "other") for _ in range(3)] == [True] * 3
    assert len(reviews.asked) == 1

    clock.move(ms=int(REJECTED_TTL_S * 1000))
    assert await is_refused(callers, "other")
    assert len(reviews.asked) == 2


async def test_token_is_not_cached_beyond_its_expiry(clock: FakeClock) -> None:
    reviews = Reviews(expires_at_s=clock.now_ms() / 1000 + 5)
    callers = CallerCache(reviews, clock)
    await callers.identify("bot")

    clock.move(ms=5000)
    await callers.identify("bot")

    assert len(reviews.asked) == 2


async def test_concurrent_requests_share_one_review(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    assert await asyncio.gather(*(callers.identify("bot") for _ in range(50))) == [BOT] * 50
    assert len(reviews.asked) == 1


async def test_concurrent_reviews_are_limited(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)

    await asyncio.gather(*(callers.identify(f"bot{number}") for number in range(3 * MAX_CONCURRENT_REVIEWS)))

    assert reviews.most_at_once == MAX_CONCURRENT_REVIEWS


async def test_failed_review_is_not_cached(clock: FakeClock) -> None:
    """All waiting requests get the error."""

    reviews = Reviews()
    reviews.is_away = True
    callers = CallerCache(reviews, clock)

    results = await asyncio.gather(*(callers.identify("bot") for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in results] == [TransientError] * 3
    assert len(reviews.asked) == 1

    reviews.is_away = False
    assert await callers.identify("bot") == BOT


async def test_cached_caller_passes_during_outage(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock)
    await callers.identify("bot")

    reviews.is_away = True

    assert await callers.identify("bot") == BOT


async def test_review_survives_a_cancelled_request(clock: FakeClock) -> None:
    callers = CallerCache(Reviews(), clock)
    first = asyncio.create_task(callers.identify("bot"))
    await asyncio.sleep(0)
    second = asyncio.create_task(callers.identify("bot"))
    await asyncio.sleep(0)

    first.cancel()

    assert await second == BOT


async def test_rejected_tokens_evict_no_accepted_one(clock: FakeClock) -> None:
    reviews = Reviews()
    callers = CallerCache(reviews, clock, max_entries=10)
    await callers.identify("bot")

    for number in range(50):
        assert await is_refused(callers, f"other{number}")
    await callers.identify("bot")
    assert reviews.asked.count("bot") == 1

    for number in range(10):
        await callers.identify(f"bot{number}")
    await callers.identify("bot")
    assert reviews.asked.count("bot") == 2


async def test_tokens_are_not_stored(clock: FakeClock) -> None:
    callers = CallerCache(Reviews(), clock)
    await callers.identify("bot-s3cret")

    assert "s3cret" not in repr(callers)


async def test_cached_caller_is_renewed_before_expiry(clock: FakeClock) -> None:
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


async def test_renewal_evicts_a_revoked_token(clock: FakeClock) -> None:
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


async def test_expiring_token_is_not_renewed_repeatedly(clock: FakeClock) -> None:
    reviews = Reviews(expires_at_s=clock.now_ms() / 1000 + 5)
    callers = CallerCache(reviews, clock)
    await callers.identify("bot")

    for _ in range(3):
        assert callers.find_cached("bot") == BOT
        await asyncio.sleep(0.01)
    assert len(reviews.asked) == 1


async def test_renewal_does_not_wait_for_unknown_tokens(clock: FakeClock) -> None:
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
