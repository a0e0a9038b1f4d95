"""What a shell completes is what the verbs take, and no verb is imported for it."""

import resource
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from typer._completion_classes import FishComplete
from typer.core import TyperGroup

from agentmemory_operator.entrypoints.cli.commands import LazyVerbs
from agentmemory_operator.entrypoints.cli.completing import TABLE, CompletedVerbs
from agentmemory_operator.entrypoints.cli.program import COMPLETE
from tests.support.command_line import verbs_of
from tests.support.completions import rendered
from tests.support.programs import AGENTMEMORY, clean_environment

MOST_CPU_S = 0.3
# This machine may be busy: then the same work takes longer.
ATTEMPTS = 5


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
    assert TABLE.read_text(encoding="utf-8") == rendered(), "write it again: make completions"


def test_as_much_is_completed_as_the_verbs_themselves_would() -> None:
    verbs, table = dict(LazyVerbs(verbs_of())), dict(CompletedVerbs())
    typed = [words for name, verb in verbs.items() for words in asked_of(verb, (name,))]

    wanted = {words: completed(TyperGroup(name="agentmemory", commands=verbs), words) for words in typed}
    found = {words: completed(TyperGroup(name="agentmemory", commands=table), words) for words in typed}

    assert sum(map(bool, wanted.values())) > 200
    assert {words: told for words, told in found.items() if told != wanted[words]} == {}


@pytest.mark.parametrize("typed", ["agentmemory plan --", "agentmemory snapshot list --"])
def test_options_are_completed_in_little_time(typed: str) -> None:
    asked = {COMPLETE: "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    spent = []
    for _ in range(ATTEMPTS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            AGENTMEMORY, capture_output=True, text=True, env=clean_environment() | asked, check=True, timeout=60
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        if spent[-1] <= MOST_CPU_S:
            break
    assert "--output" in done.stdout.split()
    assert min(spent) <= MOST_CPU_S
