"""Turn functions that build calls into methods of a client, an agent or a user."""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import cache, wraps
from inspect import Parameter, signature
from types import MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, get_args, get_origin, overload

from agentmemory_client.exchange import Call, Listing

if TYPE_CHECKING:
    from agentmemory_client.clients import AsyncClient, Client

T = TypeVar("T")
P = ParamSpec("P")
ResultCall = TypeVar("ResultCall", covariant=True)


class SyncMethods:
    """Base of the blocking classes: their methods return when the response has arrived.

    Attributes:
        _client: Client that sends the calls.
        _bound: First arguments of every call: nothing, the agent, or the agent and the user.
    """

    _client: "Client"
    _bound: tuple[str, ...] = ()

    @classmethod
    def _bind_call(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        return lambda owner, *args, **options: owner._client.run(ask(*owner._bound, *args, **options))

    @classmethod
    def _bind_listing(cls, ask: Callable[..., Listing[Any]]) -> Callable[..., Any]:
        return lambda owner, *args, **options: owner._client.entries(ask(*owner._bound, *args, **options))

    _iterator: Any = Iterator


class AsyncMethods:
    """Base of the classes for asyncio: their methods are awaited, or iterated with `async for`."""

    _client: "AsyncClient"
    _bound: tuple[str, ...] = ()

    @classmethod
    def _bind_call(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        async def method(owner: AsyncMethods, *args: Any, **options: Any) -> Any:
            return await owner._client.run(ask(*owner._bound, *args, **options))

        return method

    @classmethod
    def _bind_listing(cls, ask: Callable[..., Listing[Any]]) -> Callable[..., Any]:
        return lambda owner, *args, **options: owner._client.entries(ask(*owner._bound, *args, **options))

    _iterator: Any = AsyncIterator


class Method(Generic[P, ResultCall]):
    """Descriptor that turns a function that builds a call or a listing into a method.

    The method has the function's docstring, and its parameters without the bound ones. It returns the result of the
    call, or an iterator over the entries of the listing.
    """

    def __init__(self, prepare: Callable[..., ResultCall], bound: int) -> None:
        self._ask, self._bound = prepare, bound

    @overload
    def __get__(self: "Method[P, Call[T]]", owner: SyncMethods, type_: type) -> Callable[P, T]: ...
    @overload
    def __get__(self: "Method[P, Listing[T]]", owner: SyncMethods, type_: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(
        self: "Method[P, Call[T]]", owner: AsyncMethods, type_: type
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self: "Method[P, Listing[T]]", owner: AsyncMethods, type_: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, owner: None, type_: type) -> Callable[..., Any]: ...
    def __get__(self, owner: SyncMethods | AsyncMethods | None, type_: Any) -> Callable[..., Any]:
        method = _method_of(type_, self._ask, self._bound)
        return method if owner is None else MethodType(method, owner)


def client_method(prepare: Callable[P, ResultCall]) -> Method[P, ResultCall]:
    """Make a method of a client. All arguments of `prepare` are parameters of the method."""
    return Method(prepare, 0)


def agent_method(prepare: Callable[Concatenate[str, P], ResultCall]) -> Method[P, ResultCall]:
    """Make a method of an agent. The first argument of `prepare` is the agent's name."""
    return Method(prepare, 1)


def user_method(prepare: Callable[Concatenate[str, str, P], ResultCall]) -> Method[P, ResultCall]:
    """Make a method of a user. The first arguments of `prepare` are the agent's name and the user id."""
    return Method(prepare, 2)


@cache
def _method_of(
    owner: type[SyncMethods] | type[AsyncMethods], ask: Callable[..., Any], bound: int
) -> Callable[..., Any]:
    ask_signature = signature(ask)
    (answer,) = get_args(ask_signature.return_annotation)
    if get_origin(ask_signature.return_annotation) is Listing:
        method, answer = owner._bind_listing(ask), owner._iterator[answer]
    else:
        method = owner._bind_call(ask)
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *list(ask_signature.parameters.values())[bound:]]
    described: Any = wraps(ask)(method)
    described.__signature__ = ask_signature.replace(parameters=parameters, return_annotation=answer)
    return described  # type: ignore[no-any-return] # a function with extra attributes
