"""A LangGraph graph that remembers a user from one thread to the next; no model is needed.

pip install langgraph
agentmemory dev --manifests examples/langgraph --port 8080
python examples/langgraph/chat.py
"""

import os
from typing import TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime

from agentmemory_client import format_context
from agentmemory_client.langgraph_store import AgentMemoryStore

CONTEXT_CHARACTERS = 400


class Chat(TypedDict, total=False):
    """State of a turn: the user's message, related memories, and the answer."""

    message: str
    remembered: str
    answer: str


class User(TypedDict):
    """Context of a run: the current user."""

    user_id: str


def recall(state: Chat, runtime: Runtime[User]) -> Chat:
    """Find earlier messages that are related, as many as fit into the prompt."""
    found = runtime.store.search(("memories", runtime.context["user_id"]), query=state["message"], limit=5)
    return {"remembered": format_context([item.value["text"] for item in found], limit=CONTEXT_CHARACTERS)}


def answer(state: Chat) -> Chat:
    """Answer from memory. Call a model here, with `remembered` in its prompt."""
    return {"answer": f"You said:\n{state['remembered']}" if state["remembered"] else "Tell me more."}


def remember(state: Chat, runtime: Runtime[User]) -> Chat:
    """Store the message under a key of its first three words. A message with the same key replaces it."""
    key = "-".join(state["message"].lower().split()[:3])
    runtime.store.put(("memories", runtime.context["user_id"]), key, {"text": state["message"]})
    return {}


def build_graph(store: AgentMemoryStore) -> CompiledStateGraph:
    """Build the graph: recall, answer, remember."""
    graph = StateGraph(Chat, context_schema=User)
    for node in (recall, answer, remember):
        graph.add_node(node)
    graph.add_edge(START, "recall")
    graph.add_edge("recall", "answer")
    graph.add_edge("answer", "remember")
    graph.add_edge("remember", END)
    return graph.compile(store=store)


def main() -> None:
    """Run two threads: the second recalls the message of the first."""
    url = os.environ.get("AGENTMEMORY_URL", "http://127.0.0.1:8080")
    user = os.environ.get("EXAMPLE_USER", "ada")
    with AgentMemoryStore("langgraph-bot", user_id=user, url=url, fields=["text"], threshold=0.3) as store:
        chat = build_graph(store)
        for message in ("I pay by invoice within 30 days", "How do I pay?"):
            state = chat.invoke({"message": message}, context={"user_id": user})
            print(f"> {message}\n{state['answer']}")


if __name__ == "__main__":
    main()
