"""The name by which the command line was called: as a program, or as a kubectl plugin."""

import io
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout, suppress
from pathlib import PurePath

PROGRAM, PLUGIN = "agentmemory", "kubectl-agentmemory"
# Environment variable by which a shell's completion script requests completions, for both names of the program.
COMPLETE = "_AGENTMEMORY_COMPLETE"
# Directives of kubectl's completion protocol: complete file names, or do not.
FILES, NO_FILES = ":0", ":4"


def called_as() -> str:
    """Return the command as typed by the user: `agentmemory` or `kubectl agentmemory`."""
    return "kubectl agentmemory" if PurePath(sys.argv[0]).stem == PLUGIN else PROGRAM


def complete_plugin(words: Sequence[str], run: Callable[[], None]) -> None:
    """Print the completions of a plugin's arguments in kubectl's format: one per line with its help, then a directive.

    Args:
        words: Arguments so far; the last one is incomplete.
        run: Runs the command line, which prints completions in the format of fish.
    """
    typed = " ".join(_quoted(word) for word in (PROGRAM, *words[:-1]))
    request = {COMPLETE: "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    os.environ |= request | {"_TYPER_COMPLETE_ARGS": f"{typed} {words[-1] if words else ''}"}
    with redirect_stdout(io.StringIO()) as output, suppress(SystemExit):
        run()
    found = [line for line in output.getvalue().splitlines() if line]
    print("\n".join([*found, NO_FILES if found else FILES]))


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'" if word.strip() != word or not word.isalnum() else word
