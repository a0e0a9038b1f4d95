"""Memory fields of the client: the same as those of the API."""

from dataclasses import fields

from agentmemory_client.memory_calls import NewMemory
from agentmemory_client.values import Memory
from agentmemory_operator.entrypoints.api.memory_requests import MemoryIn
from agentmemory_operator.entrypoints.api.memory_schemas import MemoryOut


def test_client_reads_every_field() -> None:
    assert {field.name for field in fields(Memory)} == MemoryOut.model_fields.keys() | {"extra", "etag"}


def test_client_sends_every_field() -> None:
    assert NewMemory.__required_keys__ | NewMemory.__optional_keys__ == MemoryIn.model_fields.keys()
