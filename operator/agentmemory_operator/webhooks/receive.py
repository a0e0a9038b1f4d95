"""Authenticate signed requests to the hooks that an AgentMemory declares.

Each hook names a Secret with its signing key. The result of reading it, a failure too, is cached for 10 s.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from agentmemory_operator.agents.directory import AgentDirectory
from agentmemory_operator.connections.rules.host_lists import NOWHERE
from agentmemory_operator.errors import AgentMemoryError, NotFound, Unauthenticated
from agentmemory_operator.ports.base import Clock
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.spec.effective.settings import AgentSettings
from agentmemory_operator.spec.kinds.spec_webhooks import Hook
from agentmemory_operator.webhooks.rules.events import decode_key, verify_signature

# Milliseconds in which requests, which anybody may send, cause at most one read of a hook's Secret in each process.
KEY_CACHE_MS = 10_000
MAX_KEYS = 1_000


@dataclass(slots=True)
class HookVerifier:
    """Finds the hooks of agents, and verifies the signatures of requests to them.

    Attributes:
        secrets_of: Returns the reader of Secrets for the agent with a slug.
    """

    directory: AgentDirectory
    secrets_of: Callable[[str], Secrets]
    clock: Clock
    # Read time in Unix milliseconds, and the key (None if unusable), by slug, uid and hook.
    _keys: dict[tuple[str, str, Hook], tuple[int, bytes | None]] = field(default_factory=dict, init=False)
    # Locks by slug, uid and hook, because a slow read of one hook's Secret must not delay the other hooks.
    _locks: WeakValueDictionary[tuple[str, str, Hook], asyncio.Lock] = field(
        default_factory=WeakValueDictionary, init=False
    )

    def find(self, slug: str, name: str) -> tuple[AgentSettings, Hook]:
        """Return the settings of the agent with a slug, and its hook with a name.

        Raises:
            NotFound: If the agent or the hook does not exist. The message does not reveal which.
        """
        try:
            settings = self.directory.find_settings(slug)
        except NotFound:
            settings = None
        for hook in settings.hooks if settings else ():
            if settings and hook.name == name:
                return settings, hook
        raise NotFound(f"there is no hook {name[:64]!r} of an agent {slug[:64]!r}: see spec.hooks of its object")

    async def check(self, settings: AgentSettings, hook: Hook, headers: Mapping[str, str], body: bytes) -> None:
        """Raise unless a request has a valid signature of the hook's key and a recent timestamp.

        Raises:
            Unauthenticated: If the signature is invalid, or the time is more than five minutes from now. Also if no
                usable key could be read from the hook's Secret.
        """
        key = await self._key(settings, hook)
        if key is None or not verify_signature(key, headers, body, self.clock.now_ms() // 1000):
            raise Unauthenticated("the signature is invalid or older than 5 minutes: see docs/webhooks.md")

    async def _key(self, settings: AgentSettings, hook: Hook) -> bytes | None:
        cache_key = settings.slug, settings.uid, hook
        async with self._locks.setdefault(cache_key, asyncio.Lock()):
            read_at, key = self._keys.get(cache_key, (0, None))
            if not 0 <= self.clock.now_ms() - read_at < KEY_CACHE_MS:
                key = await self._read(settings, hook)
                if len(self._keys) >= MAX_KEYS:
                    self._keys.clear()
                self._keys[cache_key] = self.clock.now_ms(), key
            return key

    async def _read(self, settings: AgentSettings, hook: Hook) -> bytes | None:
        ref = hook.secret_ref
        try:
            return decode_key(
                await self.secrets_of(settings.slug).read(settings.namespace, ref.name, ref.key, to=NOWHERE)
            )
        except AgentMemoryError:
            # Give an unauthenticated caller no details. A missing Secret is reported in the object's conditions.
            return None
