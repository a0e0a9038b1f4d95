"""The client knows each field of a memory that the API takes or gives."""

from dataclasses import fields

from agentmemory_client.memory_calls import NewMemory
from agentmemory_client.values import Memory
from agentmemory_operator.entrypoints.api.memory_requests import MemoryIn
from agentmemory_operator.entrypoints.api.memory_schemas import MemoryOut


def test_the_client_reads_each_field_of_a_memory() -> None:
    assert {field.name for field in fields(Memory)} - {"extra"} == MemoryOut.model_fields.keys()


def test_the_client_sends_each_field_of_a_memory() -> None:
    assert NewMemory.__required_keys__ | NewMemory.__optional_keys__ == MemoryIn.model_fields.keys()
