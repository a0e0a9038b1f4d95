"""The API's table of agents: who may call, which collection is read, and what happens while its alias moves."""
