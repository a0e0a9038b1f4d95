"""User tokens: signed tokens that let their bearer act for one user, within the rights of the subject that issued them.

Tokens are not stored: every replica verifies them with the shared signing key. The rights of a bearer are computed for
each request from the issuing subject's current rights (`spec/caller_rights.py: verbs_of`). So removing the subject
revokes its tokens.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from agentmemory_operator.errors import TransientError, Unauthenticated
from agentmemory_operator.ports.access import SigningKey, SigningKeys, UserTokenCodec
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.spec.caller_rights import Caller, Delegation, Verb
from agentmemory_operator.spec.effective.settings import AgentSettings

# Seconds for which the signing key is cached. So a replaced key may sign and verify tokens for that long.
KEY_TTL_S = 30.0
# Minimum seconds between reads of the key, so that tokens with unknown key ids cannot cause more.
MIN_KEY_READ_PERIOD_S = 5.0


@dataclass(frozen=True, slots=True)
class MintedToken:
    """A new token. It is returned once and never logged.

    Attributes:
        expires_at_ms: Expiry, Unix milliseconds.
    """

    token: str = field(repr=False)
    expires_at_ms: int


@dataclass(slots=True)
class UserTokens:
    """Issues and verifies user tokens.

    Attributes:
        keys: Reads the current signing key.
        codec: Signs and parses tokens.
        has_identities: True if callers are authenticated as ServiceAccounts. Tokens that were issued without a
            ServiceAccount are then rejected.
    """

    keys: SigningKeys
    codec: UserTokenCodec
    clock: Clock
    has_identities: bool
    _key: SigningKey | None = field(default=None, init=False)
    _read_error: TransientError | None = field(default=None, init=False)
    _read_at_s: float = field(default=0.0, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def mint(
        self, caller: Caller, settings: AgentSettings, *, user_id: str, verbs: Iterable[Verb], ttl_s: int
    ) -> MintedToken:
        """Issue a token for one user of an agent. The route must have checked that the caller has all of the verbs.

        Args:
            user_id: A user or a shared scope.
            ttl_s: Seconds until the token expires.

        Raises:
            TransientError: If no signing key is available.
        """
        key = await self._key_for("")
        delegation = Delegation(settings.slug, settings.namespace, settings.uid, user_id, frozenset(verbs))
        now_s = int(self._now_s())
        token = self.codec.sign(key, replace(caller, delegation=delegation), now_s=now_s, expires_at_s=now_s + ttl_s)
        return MintedToken(token, (now_s + ttl_s) * 1000)

    def find_cached(self, token: str) -> Caller | None:
        """Return the caller of a token if the cached signing key can verify it, without I/O.

        None if no key is cached, it is older than `KEY_TTL_S`, or the token names another key.

        Raises:
            Unauthenticated: If the token is invalid, expired, or issued without an identity that is now required.
        """
        key = self._key
        if key is None or self._age_s() >= KEY_TTL_S or self.codec.key_id(token) != key.id:
            return None
        return self._read(token, key)

    async def identify(self, token: str) -> Caller:
        """Return the caller of a token; read the signing key if needed.

        Raises:
            Unauthenticated: If the token is invalid, expired, or issued without an identity that is now required.
            TransientError: If no signing key is available now.
        """
        return self._read(token, await self._key_for(self.codec.key_id(token)))

    async def signing_key(self) -> SigningKey:
        """Return the signing key, at most `KEY_TTL_S` old, to derive other keys from.

        Raises:
            TransientError: If no signing key is available now.
        """
        return await self._key_for("")

    async def _key_for(self, key_id: str) -> SigningKey:
        """Return the signing key. Read it again if it is old, or if its id is not `key_id`; "" accepts any id.

        For another id it is read at most every `MIN_KEY_READ_PERIOD_S`. The id of the result may still differ.

        Raises:
            TransientError: If no key can be read.
        """
        async with self._reading:
            is_match = self._key is not None and key_id in ("", self._key.id)
            if self._age_s() >= (KEY_TTL_S if is_match else MIN_KEY_READ_PERIOD_S):
                await self._read_key()
            if self._key is None:
                raise self._read_error or TransientError("user tokens cannot be verified at the moment")
            return self._key

    async def _read_key(self) -> None:
        self._key = self._read_error = None
        try:
            self._key = await self.keys.read()
        except TransientError as error:
            self._read_error = error
        self._read_at_s = self._now_s()

    def _read(self, token: str, key: SigningKey) -> Caller:
        caller = self.codec.read(token, key, now_s=self._now_s())
        if self.has_identities and caller.is_unbounded:
            raise Unauthenticated("the user token's creator no longer exists: request a new one")
        return caller

    def _age_s(self) -> float:
        return self._now_s() - self._read_at_s

    def _now_s(self) -> float:
        return self.clock.now_ms() / 1000
