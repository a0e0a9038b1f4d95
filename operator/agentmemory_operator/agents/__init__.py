"""The retrieval API's agents: authorisation of callers, the table of agents, and fencing against moves of an alias."""
