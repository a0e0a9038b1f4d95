"""The store for LangGraph by its former name; `agentmemory_client.langgraph_store` is its place now."""

from agentmemory_client.langgraph_store import AgentMemoryStore as AgentMemoryStore
