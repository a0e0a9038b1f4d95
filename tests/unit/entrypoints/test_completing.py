"""What a shell completes is what the verbs take, and no verb is imported for it."""

from collections.abc import Iterator
from typing import Any

from typer._completion_classes import FishComplete
from typer.core import TyperGroup

from agentmemory_operator.entrypoints.cli.commands import LazyCommands
from agentmemory_operator.entrypoints.cli.completion_table import TABLE, CompletionCommands
from agentmemory_operator.entrypoints.cli.program import COMPLETE
from tests.support.command_line import verbs_of
from tests.support.completions import render


def asked_of(verb: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yield what one may have typed of a verb: nothing yet, the start of an option, and an option's whole name."""
    for name, command in getattr(verb, "commands", {}).items():
        yield from asked_of(command, (*path, name))
    yield (*path, "")
    yield (*path, "-")
    for option in (option for parameter in verb.params for option in parameter.opts if option.startswith("-")):
        yield (*path, option[:-1])
        yield (*path, option, "")


def completed(group: TyperGroup, words: tuple[str, ...]) -> list[tuple[str, str, str | None]]:
    """Return what may follow words, the last of them not typed to its end."""
    *args, incomplete = words
    found = FishComplete(group, {}, "agentmemory", COMPLETE).get_completions(args, incomplete)
    return [(item.value, item.type, item.help) for item in found]


def test_the_table_is_what_the_verbs_take() -> None:
    assert TABLE.read_text(encoding="utf-8") == render(), "write it again: make completions"


def test_as_much_is_completed_as_the_verbs_themselves_would() -> None:
    verbs, table = dict(LazyCommands(verbs_of())), dict(CompletionCommands())
    typed = [words for name, verb in verbs.items() for words in asked_of(verb, (name,))]

    wanted = {words: completed(TyperGroup(name="agentmemory", commands=verbs), words) for words in typed}
    found = {words: completed(TyperGroup(name="agentmemory", commands=table), words) for words in typed}

    assert sum(map(bool, wanted.values())) > 200
    assert {words: told for words, told in found.items() if told != wanted[words]} == {}
