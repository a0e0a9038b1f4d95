"""UserTokens of a replica: when the signing key is read, and the behaviour without one."""

import asyncio
from dataclasses import dataclass, field

import pytest

from agentmemory_operator.adapters.user_tokens import JwtUserTokens, new_key, parse_key
from agentmemory_operator.agents.user_tokens import KEY_TTL_S, MIN_KEY_READ_PERIOD_S, UserTokens
from agentmemory_operator.errors import TransientError, Unauthenticated
from agentmemory_operator.ports.access import SigningKey
from agentmemory_operator.spec.caller_rights import UNBOUNDED_CALLER, Caller, Verb
from agentmemory_operator.spec.effective.settings import effective_settings
from agentmemory_operator.spec.kinds.parse import parse_agent_memory
from tests.support.engine.fakes import FakeClock
from tests.support.spec.documents import memory_document

SETTINGS = effective_settings(parse_agent_memory(memory_document()))
FRONT = Caller("agents", "front")


@dataclass(slots=True)
class Kept:
    """The signing key of an installation; None if it cannot be read."""

    key: SigningKey | None = field(default_factory=lambda: parse_key(new_key()))
    reads: int = 0

    async def read(self) -> SigningKey:
        self.reads += 1
        await asyncio.sleep(0)
        if self.key is None:
            raise TransientError("away")
        return self.key


@dataclass(slots=True)
class Replicas:
    """Two replicas that share one key."""

    kept: Kept = field(default_factory=Kept)
    clock: FakeClock = field(default_factory=FakeClock)
    one: UserTokens = field(init=False)
    other: UserTokens = field(init=False)

    def __post_init__(self) -> None:
        self.one, self.other = self.replica(), self.replica()

    def replica(self, *, has_identities: bool = True) -> UserTokens:
        return UserTokens(self.kept, JwtUserTokens(), self.clock, has_identities)

    async def mint(self, by: UserTokens | None = None, caller: Caller = FRONT) -> str:
        minted = await (by or self.one).mint(caller, SETTINGS, user_id="ada", verbs=[Verb.READ], ttl_s=600)
        return minted.token

    def passes(self, seconds: float) -> None:
        self.clock.move(ms=int(seconds * 1000))


async def test_token_is_valid_on_every_replica() -> None:
    replicas = Replicas()
    token = await replicas.mint()

    assert replicas.other.find_cached(token) is None
    found = await replicas.other.identify(token)
    assert replicas.other.find_cached(token) == found
    assert (found.account, found.delegation and found.delegation.user_id) == ("agents/front", "ada")
    assert replicas.kept.reads == 2


async def test_replaced_key_expires_within_key_ttl() -> None:
    replicas = Replicas()
    token = await replicas.mint()
    replicas.kept.key = parse_key(new_key())

    replicas.passes(KEY_TTL_S - 1)
    assert replicas.one.find_cached(token)
    replicas.passes(2)
    assert replicas.one.find_cached(token) is None
    with pytest.raises(Unauthenticated):
        await replicas.one.identify(token)


async def test_new_key_is_read_within_seconds() -> None:
    replicas = Replicas()
    await replicas.mint(replicas.other)
    replicas.kept.key = parse_key(new_key())
    token = await replicas.mint(replicas.replica())

    with pytest.raises(Unauthenticated):
        await replicas.other.identify(token)
    replicas.passes(MIN_KEY_READ_PERIOD_S)
    assert await replicas.other.identify(token)


@pytest.mark.parametrize("is_there", [True, False])
async def test_unknown_tokens_cause_one_key_read(is_there: bool) -> None:
    replicas = Replicas()
    token = await replicas.mint(replicas.replica())
    strange = await Replicas().mint()
    if not is_there:
        replicas.kept.key = None
    before = replicas.kept.reads

    tried = [replicas.one.identify(one) for one in [strange] * 50 + [token]]
    answers = await asyncio.gather(*tried, return_exceptions=True)

    assert replicas.kept.reads == before + 1
    assert [type(answer) for answer in answers[:50]] == [Unauthenticated if is_there else TransientError] * 50
    assert isinstance(answers[50], Caller if is_there else TransientError)


async def test_missing_key_blocks_mint_and_identify() -> None:
    replicas = Replicas()
    token, key = await replicas.mint(), replicas.kept.key
    replicas.kept.key = None

    replicas.passes(KEY_TTL_S)
    with pytest.raises(TransientError):
        await replicas.one.identify(token)
    with pytest.raises(TransientError):
        await replicas.mint()
    replicas.kept.key = key
    replicas.passes(MIN_KEY_READ_PERIOD_S)
    assert await replicas.one.identify(token)


async def test_anonymous_token_needs_disabled_identities() -> None:
    replicas = Replicas()
    token = await replicas.mint(caller=UNBOUNDED_CALLER)

    with pytest.raises(Unauthenticated):
        await replicas.one.identify(token)
    found = await replicas.replica(has_identities=False).identify(token)
    assert (found.is_unbounded, found.account) == (True, "")


async def test_repr_hides_the_token() -> None:
    minted = await Replicas().one.mint(FRONT, SETTINGS, user_id="ada", verbs=[Verb.READ], ttl_s=60)

    assert minted.token not in repr(minted)
