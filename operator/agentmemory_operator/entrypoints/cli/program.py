"""By which name the command line was called: as a program of its own, or as a plugin of kubectl."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import PurePath

PROGRAM, PLUGIN = "agentmemory", "kubectl-agentmemory"
# What a shell's script sets to ask what may follow; the same by every name.
COMPLETE = "_AGENTMEMORY_COMPLETE"
# As kubectl has them: let the shell offer files; do not.
FILES, NO_FILES = ":0", ":4"


def called_as() -> str:
    """The words that people typed for the command: `agentmemory`, or `kubectl agentmemory`."""
    return "kubectl agentmemory" if PurePath(sys.argv[0]).stem == PLUGIN else PROGRAM


def complete_plugin(words: Sequence[str], run: Callable[[], None]) -> None:
    """Print what may follow a plugin's words as kubectl reads it: one a line with its help, then a directive.

    Args:
        words: those that were typed, the last of them not to its end.
        run: the command line, which answers as it answers fish.
    """
    typed = " ".join(_quoted(word) for word in (PROGRAM, *words[:-1]))
    asked = {COMPLETE: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    os.environ |= asked | {"_TYPER_COMPLETE_ARGS": f"{typed} {words[-1] if words else ''}"}
    with redirect_stdout(io.StringIO()) as told, suppress(SystemExit):
        run()
    found = [line for line in told.getvalue().splitlines() if line]
    print("\n".join([*found, NO_FILES if found else FILES]))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'" if word.strip() != word or not word.isalnum() else word
