"""Open language models with the API keys that their objects name."""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING
from weakref import WeakSet

from cachetools import LRUCache

from agentmemory_operator.connections.embedders import RekeyedModel
from agentmemory_operator.connections.rules.agent_secret_slots import model_key
from agentmemory_operator.main.egress import build_egress
from agentmemory_operator.ports.kubernetes import Secrets
from agentmemory_operator.ports.models import LanguageModel
from agentmemory_operator.settings import Settings
from agentmemory_operator.spec.effective.consolidation import ModelSettings

if TYPE_CHECKING:
    from agentmemory_operator.adapters.language_model.openai_chat import OpenAIChat

MAX_OPEN = 256
Owner = tuple[str, str]
"""Namespace and slug of an agent."""


class LanguageModels:
    """Opens language models, and caches up to `MAX_OPEN` of them by agent and settings.

    Connections close by themselves a few seconds after their last use.
    """

    def __init__(self, settings: Settings) -> None:
        # In a cluster a manifest's baseURL must not receive a key that the object does not name.
        self._own_key = None if settings.is_in_cluster else settings.openai_api_key
        self._egress = build_egress(settings)
        self._opened: LRUCache[tuple[Owner, ModelSettings], LanguageModel] = LRUCache(MAX_OPEN)
        # Weak references: a model is dropped when its key changes.
        self._built: WeakSet[OpenAIChat] = WeakSet()

    async def close(self) -> None:
        """Close the connections of all models."""
        self._opened.clear()
        for model in list(self._built):
            await model.aclose()

    async def open(self, settings: ModelSettings, owner: Owner, secrets: Secrets) -> LanguageModel:
        """Open the language model of an agent.

        Args:
            secrets: Reads the key. It is only sent to the hosts that its Secret lists.

        Raises:
            SpecInvalid: If the URL is invalid, the key does not exist, its Secret does not list the host, or a required
                key is not named.
            TransientError: If the key cannot be read now.
        """
        cache_key = owner, settings
        if found := self._opened.get(cache_key):
            return found
        model = self._opened[cache_key] = await self._open(settings, owner[0], secrets)
        return model

    async def _open(self, settings: ModelSettings, namespace: str, secrets: Secrets) -> LanguageModel:
        def make(api_key: str | None) -> LanguageModel:
            # Imported here, because the client library takes a second and most processes open no model.
            chat = import_module("agentmemory_operator.adapters.language_model.openai_chat")
            options = chat.ChatOptions(
                model=settings.model, api_key=api_key, base_url=settings.base_url, timeout_s=settings.timeout_s
            )
            model: OpenAIChat = chat.OpenAIChat(options, egress=self._egress)
            self._built.add(model)
            return model

        key = model_key(settings)
        if key is None:
            return make(self._own_key)
        read_key = partial(secrets.read, namespace, key.name, key.key, to=key.to)
        return RekeyedModel(await read_key(), read_key, make)
