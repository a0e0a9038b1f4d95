"""A LangGraph graph in which the model decides itself which memories to store: it calls the tool `upsertMemory`.

pip install langgraph
agentmemory dev --manifests examples/langgraph --port 8080
python examples/langgraph/tool_calls.py

Replace `stub_model` by your model: it takes messages and tools, and returns the message of a chat completion.
"""

import json
import operator
import os
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from agentmemory_client import ApiError, Client, format_context

AGENT = "langgraph-bot"
URL = os.environ.get("AGENTMEMORY_URL", "http://127.0.0.1:8080")
CONTEXT_CHARACTERS = 400

Message = dict[str, Any]


class ThreadState(TypedDict, total=False):
    """State of a thread: its user, its messages with tool calls, and earlier memories that are related."""

    user_id: str
    messages: Annotated[list[Message], operator.add]
    remembered: str


def retrieve_memories(state: ThreadState) -> ThreadState:
    """Find memories related to the last message."""
    with Client(URL) as memory:
        found = memory.agent(AGENT).user(state["user_id"]).search(state["messages"][-1]["content"], top_k=5)
    return {"remembered": format_context([result.content for result in found.results], limit=CONTEXT_CHARACTERS)}


def call_model(state: ThreadState) -> ThreadState:
    """Call the model with the memories in its prompt, and with the tool."""
    with Client(URL) as memory:
        tools = memory.agent(AGENT).tools()
    upsert = [tool for tool in tools if tool["function"]["name"] == "upsertMemory"]
    prompt = {"role": "system", "content": f"What you know of the user:\n{state['remembered']}"}
    return {"messages": [stub_model([prompt, *state["messages"]], upsert)]}


def store_memories(state: ThreadState) -> ThreadState:
    """Run the tool calls of the model. The application sets the user, never the model."""
    return {"messages": [run_tool(call, state["user_id"]) for call in state["messages"][-1]["tool_calls"]]}


def run_tool(call: Message, user_id: str) -> Message:
    """Run a call of upsertMemory; return its result, or the error, for the model, which can then retry."""
    arguments = json.loads(call["function"]["arguments"])
    try:
        with Client(URL) as memory:
            stored = memory.agent(AGENT).put_item(["memories", user_id], arguments.pop("content"), **arguments)
        answer = {"success": True, "memoryId": stored.memory_id, "key": stored.key, "message": stored.message}
    except ApiError as error:
        answer = {"success": False, "message": str(error)}
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(answer)}


def next_node(state: ThreadState) -> str:
    """Return the node after the model: the one that runs its tool calls, or the end."""
    return "store_memories" if state["messages"][-1].get("tool_calls") else END


def build_graph() -> CompiledStateGraph:
    """Build the graph: retrieve, call the model, and repeat while it calls tools."""
    graph = StateGraph(ThreadState)
    for node in (retrieve_memories, call_model, store_memories):
        graph.add_node(node)
    graph.add_edge(START, "retrieve_memories")
    graph.add_edge("retrieve_memories", "call_model")
    graph.add_conditional_edges("call_model", next_node, ["store_memories", END])
    graph.add_edge("store_memories", "call_model")
    return graph.compile()


def stub_model(messages: list[Message], tools: list[Message]) -> Message:
    """Store each statement by a tool call, and answer questions from the prompt, as a model might."""
    last, remembered = messages[-1], messages[0]["content"].partition("\n")[2]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"Noted: {json.loads(last['content'])['message']}."}
    if last["content"].endswith("?"):
        return {"role": "assistant", "content": f"You said:\n{remembered}" if remembered else "I do not know yet."}
    arguments = {"content": last["content"], "key": "payment", "metadata": {"from": "chat"}}
    function = {"name": tools[0]["function"]["name"], "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def main() -> None:
    """Run three threads: the model stores a fact, replaces it, and answers from it."""
    graph, user_id = build_graph(), os.environ.get("EXAMPLE_USER", "ada")
    for text in ("I pay by invoice within 30 days", "I pay by card within 10 days", "How do I pay?"):
        message = {"role": "user", "content": text}
        result = graph.invoke({"user_id": user_id, "messages": [message]})
        print(f"> {text}\n{result['messages'][-1]['content']}")


if __name__ == "__main__":
    main()
