"""LangGraph node that puts a context of an agent's memory into the state. It needs the extra `langgraph`.

    graph.add_node("recall", context_node(AsyncClient(url).agent("support-bot"), budget_tokens=1000))

The user is `user_id` of the runtime's context. The session with the recent turns is the thread, if there is one.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Unpack, overload

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.runtime import Runtime

from agentmemory_client.adapters.common import newest_messages
from agentmemory_client.context_calls import ContextMessage, ContextOptions
from agentmemory_client.handles import Agent, AsyncAgent

_ROLES: Mapping[str, str] = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool"}
Update = dict[str, str]


@overload
def context_node(
    agent: Agent, *, messages_key: str = ..., context_key: str = ..., **options: Unpack[ContextOptions]
) -> Callable[[Any, RunnableConfig, Runtime[Any]], Update]: ...
@overload
def context_node(
    agent: AsyncAgent, *, messages_key: str = ..., context_key: str = ..., **options: Unpack[ContextOptions]
) -> Callable[[Any, RunnableConfig, Runtime[Any]], Awaitable[Update]]: ...
def context_node(
    agent: Agent | AsyncAgent,
    *,
    messages_key: str = "messages",
    context_key: str = "context",
    **options: Unpack[ContextOptions],
) -> Callable[..., Any]:
    """Return a node that builds a context for the messages of the state, of which the newest 900 kB are sent.

    If no message has text, the context has facts and recent turns only.

    Args:
        agent: Handle of the agent. That of an AsyncClient makes an async node.
        messages_key, context_key: Keys of the state with the messages, and for the text.
        options: Further options of the request, for example `budget_tokens`.
    """

    def read(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> tuple[str, ContextOptions]:
        thread = config.get("configurable", {}).get("thread_id")
        session: ContextOptions = {"session_id": str(thread)} if thread is not None else {}
        sent = newest_messages(_messages_of(state[messages_key]))
        request: ContextOptions = {**session, **({"messages": sent} if sent else {}), **options}
        if "messages" not in request and "vector" not in request:
            # Without a question, nothing can be searched for.
            request["sections"] = ["facts", "recent"]
        return _user_of(runtime.context), request

    if isinstance(agent, AsyncAgent):

        async def recall_async(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Update:
            user_id, request = read(state, config, runtime)
            return {context_key: (await agent.user(user_id).context(**request)).text}

        return recall_async

    def recall(state: Any, config: RunnableConfig, runtime: Runtime[Any]) -> Update:
        user_id, request = read(state, config, runtime)
        return {context_key: agent.user(user_id).context(**request).text}

    return recall


def _user_of(context: Any) -> str:
    user_id = context.get("user_id") if isinstance(context, Mapping) else getattr(context, "user_id", None)
    if not user_id:
        raise ValueError("the runtime's context has no user_id: invoke the graph with context={'user_id': ...}")
    return str(user_id)


def _messages_of(messages: Iterable[BaseMessage]) -> Iterable[ContextMessage]:
    for message in messages:
        text = message.text if isinstance(message.text, str) else message.text()
        yield {"role": _ROLES.get(message.type, "user"), "content": text}
