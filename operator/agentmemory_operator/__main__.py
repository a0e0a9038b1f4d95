"""Run the command line as `python -m agentmemory_operator`."""

from agentmemory_operator.main import run

run()
