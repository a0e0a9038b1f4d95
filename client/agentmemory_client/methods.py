"""How a function that makes a call becomes a method: of a client, or of an agent or user that it has bound."""

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
Asked = TypeVar("Asked", covariant=True)


class Waiting:
    """What has methods that return when the answer is there.

    Attributes:
        _client: sends the calls.
        _bound: the agent, or the agent and the user, that every call begins with.
    """

    _client: "Client"
    _bound: tuple[str, ...] = ()

    @classmethod
    def _called(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        return lambda owner, *args, **options: owner._client.run(ask(*owner._bound, *args, **options))

    @classmethod
    def _listed(cls, ask: Callable[..., Listing[Any]]) -> Callable[..., Any]:
        return lambda owner, *args, **options: owner._client.entries(ask(*owner._bound, *args, **options))

    _iterator: Any = Iterator


class Awaited:
    """The same for asyncio: its methods are awaited, or iterated with `async for`."""

    _client: "AsyncClient"
    _bound: tuple[str, ...] = ()

    @classmethod
    def _called(cls, ask: Callable[..., Call[Any]]) -> Callable[..., Any]:
        async def method(owner: Awaited, *args: Any, **options: Any) -> Any:
            return await owner._client.run(ask(*owner._bound, *args, **options))

        return method

    @classmethod
    def _listed(cls, ask: Callable[..., Listing[Any]]) -> Callable[..., Any]:
        return lambda owner, *args, **options: owner._client.entries(ask(*owner._bound, *args, **options))

    _iterator: Any = AsyncIterator


class Method(Generic[P, Asked]):
    """A function that makes a call or a listing, as a method: its docstring, and its parameters but for those bound.

    A call's method returns the result, a listing's an iterator of the entries.
    """

    def __init__(self, ask: Callable[..., Asked], bound: int) -> None:
        self._ask, self._bound = ask, bound

    @overload
    def __get__(self: "Method[P, Call[T]]", owner: Waiting, type_: type) -> Callable[P, T]: ...
    @overload
    def __get__(self: "Method[P, Listing[T]]", owner: Waiting, type_: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self: "Method[P, Call[T]]", owner: Awaited, type_: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self: "Method[P, Listing[T]]", owner: Awaited, type_: type) -> Callable[P, AsyncIterator[T]]: ...
    @overload
    def __get__(self, owner: None, type_: type) -> Callable[..., Any]: ...
    def __get__(self, owner: Waiting | Awaited | None, type_: Any) -> Callable[..., Any]:
        method = _method_of(type_, self._ask, self._bound)
        return method if owner is None else MethodType(method, owner)


def of_client(ask: Callable[P, Asked]) -> Method[P, Asked]:
    """Make the method of a client."""
    return Method(ask, 0)


def of_agent(ask: Callable[Concatenate[str, P], Asked]) -> Method[P, Asked]:
    """Make the method of an agent: `ask` takes its name first."""
    return Method(ask, 1)


def of_user(ask: Callable[Concatenate[str, str, P], Asked]) -> Method[P, Asked]:
    """Make the method of a user: `ask` takes the names of the agent and of the user first."""
    return Method(ask, 2)


@cache
def _method_of(owner: type[Waiting] | type[Awaited], ask: Callable[..., Any], bound: int) -> Callable[..., Any]:
    asked = signature(ask)
    (answer,) = get_args(asked.return_annotation)
    if get_origin(asked.return_annotation) is Listing:
        method, answer = owner._listed(ask), owner._iterator[answer]
    else:
        method = owner._called(ask)
    parameters = [Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *list(asked.parameters.values())[bound:]]
    shown: Any = wraps(ask)(method)
    shown.__signature__ = asked.replace(parameters=parameters, return_annotation=answer)
    return shown  # type: ignore[no-any-return] # a function, with more attributes than its type has
