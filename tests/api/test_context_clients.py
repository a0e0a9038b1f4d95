"""The context call with the Python client, blocking and async, and as a node of a LangGraph graph."""

from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from agentmemory_client import ApiError, AsyncClient, Client, Context, ContextLine
from agentmemory_client.langgraph_context import context_node
from tests.support.web.api_stack import Stack

AT = datetime(2023, 5, 8, 13, 56, tzinfo=UTC)


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    context: str


class Talker(TypedDict, total=False):
    user_id: str


@pytest.fixture
def remembered(stack: Stack, user: str) -> str:
    """Store a turn of a user; return its id."""
    with Client(stack.api_url) as client:
        return client.agent("words").user(user).add("We were at the lake", type="episodic", created_at=AT).id


def build_graph(node: Any) -> Any:
    graph = StateGraph(State, context_schema=Talker)
    graph.add_node("recall", node)
    graph.add_edge(START, "recall")
    return graph.compile()


def test_client_returns_text_and_lines(stack: Stack, user: str, remembered: str) -> None:
    with Client(stack.api_url) as client:
        context = client.agent("words").user(user).context("where were we?", budget_tokens=300, reference_time=AT)

    assert isinstance(context, Context)
    assert context.tokens <= context.budget_tokens == 300
    [line] = context.lines
    assert isinstance(line, ContextLine)
    assert (line.memory_id, line.created_at, line.text, line.cut) == (remembered, AT, "We were at the lake", False)
    assert line.text in context.text
    assert [section.name for section in context.sections] == ["facts", "relevant", "recent"]
    assert context.extra == line.extra == {}


async def test_async_client_returns_the_same(stack: Stack, user: str, remembered: str) -> None:
    messages = [{"role": "user", "content": "where were we?"}]
    with Client(stack.api_url) as client:
        expected = client.agent("words").user(user).context(messages=messages)

    async with AsyncClient(stack.api_url) as asynchronous:
        assert (await asynchronous.agent("words").user(user).context(messages=messages)).text == expected.text


def test_node_puts_the_context_into_the_state(stack: Stack, user: str, remembered: str) -> None:
    said = [
        HumanMessage("hello"),
        AIMessage(""),
        AIMessage("\u3164"),
        HumanMessage([{"type": "text", "text": "where were we?"}]),
    ]
    with Client(stack.api_url) as client:
        graph = build_graph(context_node(client.agent("words"), budget_tokens=300))
        result = graph.invoke({"messages": said}, {"configurable": {"thread_id": 7}}, context={"user_id": user})

    assert "We were at the lake" in result["context"]


async def test_async_node_puts_the_context_into_the_state(stack: Stack, user: str, remembered: str) -> None:
    async with AsyncClient(stack.api_url) as client:
        graph = build_graph(context_node(client.agent("words")))
        result = await graph.ainvoke({"messages": [HumanMessage("lake")]}, context={"user_id": user})

    assert "We were at the lake" in result["context"]


def test_node_sends_the_newest_of_a_long_conversation(stack: Stack, user: str, remembered: str) -> None:
    said = [HumanMessage("ü" * 60_000) for _ in range(20)]
    with Client(stack.api_url) as client:
        graph = build_graph(context_node(client.agent("words"), budget_tokens=300))
        result = graph.invoke({"messages": [*said, HumanMessage("lake")]}, context={"user_id": user})

    assert "We were at the lake" in result["context"]


@pytest.mark.parametrize("said", [[], [HumanMessage("\u200b")], [AIMessage("")]])
def test_node_without_a_text_returns_facts(stack: Stack, user: str, said: list[AnyMessage]) -> None:
    with Client(stack.api_url) as client:
        client.agent("words").user(user).add("Ada pays by invoice", type="preference")
        graph = build_graph(context_node(client.agent("words")))
        result = graph.invoke({"messages": said}, context={"user_id": user})

    assert "Ada pays by invoice" in result["context"]


def test_node_needs_a_user(stack: Stack) -> None:
    with Client(stack.api_url) as client:
        graph = build_graph(context_node(client.agent("words")))

        with pytest.raises(ValueError, match="user_id"):
            graph.invoke({"messages": [HumanMessage("lake")]}, context={})


def test_node_raises_errors_of_the_api(stack: Stack, user: str) -> None:
    with Client(stack.api_url) as client:
        graph = build_graph(context_node(client.agent("nobody")))

        with pytest.raises(ApiError, match="nobody"):
            graph.invoke({"messages": [HumanMessage("lake")]}, context={"user_id": user})
