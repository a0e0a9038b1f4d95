"""Write the table of shell completions: `make completions`."""

from agentmemory_operator.entrypoints.cli.commands import LazyCommands
from agentmemory_operator.entrypoints.cli.completion_table import TABLE, render_table
from tests.support.command_line import verbs_of


def render() -> str:
    """Render the table for the current verbs."""
    return render_table(LazyCommands(verbs_of()))


if __name__ == "__main__":
    TABLE.write_text(render(), encoding="utf-8")
