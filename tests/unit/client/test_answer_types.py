"""Response types of the client: the same fields as the API."""

from dataclasses import fields

import pytest
from pydantic import BaseModel

import agentmemory_client as client
from agentmemory_client import entity_calls, values
from agentmemory_client.values import Answer
from agentmemory_operator.entrypoints.api import agent_schemas, memory_schemas
from agentmemory_operator.entrypoints.api.identity import user_requests as identity
from agentmemory_operator.entrypoints.api.memories import (
    conversation_requests,
    entity_requests,
    forget_requests,
)
from agentmemory_operator.entrypoints.api.transfer import change_requests

ANSWERS: list[tuple[type[Answer], type[BaseModel]]] = [
    (client.AgentSummary, agent_schemas.AgentOut),
    (client.AgentDetails, agent_schemas.AgentDetailOut),
    (client.TypeDetails, agent_schemas.TypeOut),
    (client.Stats, agent_schemas.StatsOut),
    (client.Stored, memory_schemas.StoredOut),
    (client.Memory, memory_schemas.MemoryOut),
    (client.Page, memory_schemas.PageOut),
    (client.Tree, memory_schemas.TreeOut),
    (client.Kept, memory_schemas.KeptOut),
    (client.SearchResult, memory_schemas.SearchOut),
    (client.ItemStored, memory_schemas.ItemStoredOut),
    (values.KeysPage, memory_schemas.KeysOut),
    (client.ConversationStored, conversation_requests.ConversationOut),
    (client.SaidRelation, entity_requests.RelationOut),
    (entity_calls.EntitiesPage, entity_requests.EntitiesOut),
    (client.EntityDetails, entity_requests.EntityViewOut),
    (client.ReceiptsPage, forget_requests.ReceiptsOut),
    (client.UserDetails, identity.UserDetailsOut),
    (client.UserToken, identity.TokenOut),
    (values.UsersPage, identity.UsersOut),
    (client.Change, change_requests.ChangeOut),
    (client.ChangesPage, change_requests.ChangesOut),
]


# The client reads these fields from headers of the response.
OF_HEADERS = {client.Memory: {"etag"}}


@pytest.mark.parametrize(("value", "model"), ANSWERS, ids=lambda type_: type_.__name__)
def test_type_has_the_fields_of_the_api(value: type[Answer], model: type[BaseModel]) -> None:
    added = {"extra"} | OF_HEADERS.get(value, set())

    assert {field.name for field in fields(value)} == model.model_fields.keys() | added
