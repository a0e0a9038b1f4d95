"""User tokens: what a subject lets somebody do in one user's name, signed, so that every replica knows it.

Nothing of them is kept. What one may do is looked up with each request, among what its subject has then
(`spec.access.verbs_of`): a subject that goes takes its tokens along.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agentmemory_operator.errors import TransientError, Unauthenticated
from agentmemory_operator.ports.access import SigningKey, SigningKeys, UserTokenForm
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.spec.access import Caller, Delegation, Verb
from agentmemory_operator.spec.effective.settings import AgentSettings

# A key that was replaced signs nothing more after that.
KEY_KNOWN_S = 30.0
# Strangers who name keys that there are not have it read no more often.
KEY_READ_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class MintedToken:
    """A token; it is told once, and never logged."""

    token: str = field(repr=False)
    expires_at_ms: int


@dataclass(slots=True)
class UserTokens:
    """Mints user tokens, and knows them again.

    Attributes:
        has_identities: callers are ServiceAccounts; a token of nobody's is none then.
    """

    keys: SigningKeys
    form: UserTokenForm
    clock: Clock
    has_identities: bool
    _key: SigningKey | None = field(default=None, init=False)
    _trouble: TransientError | None = field(default=None, init=False)
    _read_at_s: float = field(default=0.0, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def mint(
        self, caller: Caller, settings: AgentSettings, *, user_id: str, verbs: Iterable[Verb], ttl_s: int
    ) -> MintedToken:
        """A token for one user of an agent; the caller has been found to have all of that.

        Raises:
            TransientError: there is no key to sign it with.
        """
        key = await self._key_for("")
        delegation = Delegation(settings.slug, settings.namespace, settings.uid, user_id, frozenset(verbs))
        now_s = int(self._now_s())
        token = self.form.sign(key, replace(caller, delegation=delegation), now_s=now_s, expires_at_s=now_s + ttl_s)
        return MintedToken(token, (now_s + ttl_s) * 1000)

    def known(self, token: str) -> Caller | None:
        """Whose token it is, where the key is at hand.

        Raises:
            Unauthenticated: nobody's, or not any more.
        """
        key = self._key
        if key is None or self._age_s() >= KEY_KNOWN_S or self.form.key_id(token) != key.id:
            return None
        return self._read(token, key)

    async def identify(self, token: str) -> Caller:
        """Whose token it is.

        Raises:
            Unauthenticated: nobody's, or not any more.
            TransientError: it cannot be found out for now.
        """
        return self._read(token, await self._key_for(self.form.key_id(token)))

    async def _key_for(self, key_id: str) -> SigningKey:
        """The key, read again where it is old or another is named."""
        async with self._reading:
            is_wanted = self._key is not None and key_id in ("", self._key.id)
            if self._age_s() >= (KEY_KNOWN_S if is_wanted else KEY_READ_AGAIN_S):
                await self._read_key()
            if self._key is None:
                raise self._trouble or TransientError("user tokens cannot be verified at the moment")
            return self._key

    async def _read_key(self) -> None:
        self._key = self._trouble = None
        try:
            self._key = await self.keys.read()
        except TransientError as trouble:
            self._trouble = trouble
        self._read_at_s = self._now_s()

    def _read(self, token: str, key: SigningKey) -> Caller:
        caller = self.form.read(token, key, now_s=self._now_s())
        if self.has_identities and caller.is_unbounded:
            raise Unauthenticated("the user token's creator no longer exists: request a new one")
        return caller

    def _age_s(self) -> float:
        return self._now_s() - self._read_at_s

    def _now_s(self) -> float:
        return self.clock.now_ms() / 1000
