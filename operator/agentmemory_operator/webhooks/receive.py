"""Who sends to a hook: whoever has its key, which is read once in a while."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.connections.rules.secret_hosts import NOWHERE
from agentmemory_operator.errors import AgentMemoryError, NotFound, Unauthenticated
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.spec_webhooks import Hook
from agentmemory_operator.webhooks.rules.events import is_signed, key_of

# Strangers who send what is not signed have a Secret read no more often.
KEY_KNOWN_MS = 10_000
MAX_KEYS = 1_000


@dataclass(slots=True)
class Hooks:
    """Knows what was signed with the key of a hook.

    Attributes:
        secrets_of: the Secrets of one agent, by slug.
    """

    directory: AgentDirectory
    secrets_of: Callable[[str], Secrets]
    clock: Clock
    # When each was read; None where there is no key.
    _keys: dict[tuple[str, str, Hook], tuple[int, bytes | None]] = field(default_factory=dict, init=False)
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def find(self, slug: str, name: str) -> tuple[AgentSettings, Hook]:
        """The agent and its hook.

        Raises:
            NotFound: there is no such agent, or it has no such hook: nobody learns which.
        """
        try:
            settings = self.directory.settings(slug)
        except NotFound:
            settings = None
        for hook in settings.hooks if settings else ():
            if settings and hook.name == name:
                return settings, hook
        raise NotFound(f"there is no hook {name[:64]!r} of an agent {slug[:64]!r}: see spec.hooks of its object")

    async def check(self, settings: AgentSettings, hook: Hook, headers: Mapping[str, str], body: bytes) -> None:
        """Pass where a message was signed with the hook's key, just now.

        Raises:
            Unauthenticated: it was not, or there is no key.
        """
        key = await self._key(settings, hook)
        if key is None or not is_signed(key, headers, body, self.clock.now_ms() // 1000):
            raise Unauthenticated("the signature is invalid or older than 5 minutes: see docs/webhooks.md")

    async def _key(self, settings: AgentSettings, hook: Hook) -> bytes | None:
        place = settings.slug, settings.uid, hook
        async with self._reading:
            read_at, key = self._keys.get(place, (0, None))
            if not 0 <= self.clock.now_ms() - read_at < KEY_KNOWN_MS:
                key = await self._read(settings, hook)
                if len(self._keys) >= MAX_KEYS:
                    self._keys.clear()
                self._keys[place] = self.clock.now_ms(), key
            return key

    async def _read(self, settings: AgentSettings, hook: Hook) -> bytes | None:
        ref = hook.secret_ref
        try:
            return key_of(await self.secrets_of(settings.slug).read(settings.namespace, ref.name, ref.key, to=NOWHERE))
        except AgentMemoryError:
            # Nobody is told who is not known: the object's conditions say what is wrong.
            return None
