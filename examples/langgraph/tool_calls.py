"""A LangGraph graph whose model decides itself what to keep: it calls the tool `upsertMemory`, and the graph runs it.

pip install langgraph
agentmemory dev --manifests examples/langgraph --port 8080
python examples/langgraph/tool_calls.py

A function stands where your model does: it takes messages and tools, and answers in the form of a chat completion.
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


class Talk(TypedDict, total=False):
    """A thread: who talks, what was said and called in it, and what is known from before."""

    user_id: str
    messages: Annotated[list[Message], operator.add]
    remembered: str


def retrieve_memories(talk: Talk) -> Talk:
    """Find what is known that has to do with the last message."""
    with Client(URL) as memory:
        found = memory.agent(AGENT).user(talk["user_id"]).search(talk["messages"][-1]["content"], top_k=5)
    return {"remembered": format_context([one.content for one in found.results], limit=CONTEXT_CHARACTERS)}


def call_model(talk: Talk) -> Talk:
    """Ask the model: what is remembered goes into its prompt, the tools beside it."""
    with Client(URL) as memory:
        tools = memory.agent(AGENT).tools()
    upsert = [tool for tool in tools if tool["function"]["name"] == "upsertMemory"]
    prompt = {"role": "system", "content": f"What you know of the user:\n{talk['remembered']}"}
    return {"messages": [ask_model([prompt, *talk["messages"]], upsert)]}


def store_memories(talk: Talk) -> Talk:
    """Run what the model called; whose memory it is says the application, never the model."""
    return {"messages": [run_tool(call, talk["user_id"]) for call in talk["messages"][-1]["tool_calls"]]}


def run_tool(call: Message, user_id: str) -> Message:
    """What a call of upsertMemory came to, for the model to read; a refusal too, so that it can call again."""
    arguments = json.loads(call["function"]["arguments"])
    try:
        with Client(URL) as memory:
            stored = memory.agent(AGENT).put_item(["memories", user_id], arguments.pop("content"), **arguments)
        answer = {"success": True, "memoryId": stored.memory_id, "key": stored.key, "message": stored.message}
    except ApiError as error:
        answer = {"success": False, "message": str(error)}
    return {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(answer)}


def has_calls(talk: Talk) -> str:
    """Where to go after the model: to its calls, or to the end."""
    return "store_memories" if talk["messages"][-1].get("tool_calls") else END


def build_graph() -> CompiledStateGraph:
    """Return the graph: retrieve, ask, and as long as the model calls, store and ask again."""
    graph = StateGraph(Talk)
    for node in (retrieve_memories, call_model, store_memories):
        graph.add_node(node)
    graph.add_edge(START, "retrieve_memories")
    graph.add_edge("retrieve_memories", "call_model")
    graph.add_conditional_edges("call_model", has_calls, ["store_memories", END])
    graph.add_edge("store_memories", "call_model")
    return graph.compile()


def ask_model(messages: list[Message], tools: list[Message]) -> Message:
    """Stands where a model does: keeps what the user states, and answers questions from its prompt."""
    last, known = messages[-1], messages[0]["content"].partition("\n")[2]
    if last["role"] == "tool":
        return {"role": "assistant", "content": f"Noted: {json.loads(last['content'])['message']}."}
    if last["content"].endswith("?"):
        return {"role": "assistant", "content": f"You said:\n{known}" if known else "I do not know yet."}
    arguments = {"content": last["content"], "key": "payment", "metadata": {"from": "chat"}}
    function = {"name": tools[0]["function"]["name"], "arguments": json.dumps(arguments)}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def main() -> None:
    """Talk in three threads: the model keeps something, keeps what replaces it, and knows it."""
    talk, user_id = build_graph(), os.environ.get("EXAMPLE_USER", "ada")
    for said in ("I pay by invoice within 30 days", "I pay by card within 10 days", "How do I pay?"):
        message = {"role": "user", "content": said}
        done = talk.invoke({"user_id": user_id, "messages": [message]})
        print(f"> {said}\n{done['messages'][-1]['content']}")


if __name__ == "__main__":
    main()
