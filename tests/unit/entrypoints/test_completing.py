"""Shell completion: equal to the verbs, without importing them."""

from collections.abc import Iterator
from typing import Any

from typer._completion_classes import FishComplete
from typer.core import TyperGroup

from agentmemory_operator.entrypoints.cli.commands import LazyCommands
from agentmemory_operator.entrypoints.cli.completion_table import TABLE, CompletionCommands
from agentmemory_operator.entrypoints.cli.program import COMPLETE
from tests.support.command_line import verbs_of
from tests.support.completions import render


def inputs_of(verb: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield inputs of a verb: empty, the start of each option, and each complete option."""
    for name, command in getattr(verb, "commands", {}).items():
        yield from inputs_of(command, (*path, name))
    yield (*path, "")
    yield (*path, "-")
    for option in (option for parameter in verb.params for option in parameter.opts if option.startswith("-")):
        yield (*path, option[:-1])
        yield (*path, option, "")


def complete(group: TyperGroup, words: tuple[str, ...]) -> list[tuple[str, str, str | None]]:
    """Return the completions of the last, incomplete word."""
    *args, incomplete = words
    found = FishComplete(group, {}, "agentmemory", COMPLETE).get_completions(args, incomplete)
    return [(item.value, item.type, item.help) for item in found]


def test_completion_table_is_current() -> None:
    assert TABLE.read_text(encoding="utf-8") == render(), "write it again: make completions"


def test_table_completes_the_same_as_the_verbs() -> None:
    verbs, table = dict(LazyCommands(verbs_of())), dict(CompletionCommands())
    typed = [words for name, verb in verbs.items() for words in inputs_of(verb, (name,))]

    expected = {words: complete(TyperGroup(name="agentmemory", commands=verbs), words) for words in typed}
    found = {words: complete(TyperGroup(name="agentmemory", commands=table), words) for words in typed}

    assert sum(map(bool, expected.values())) > 200
    assert {words: items for words, items in found.items() if items != expected[words]} == {}
