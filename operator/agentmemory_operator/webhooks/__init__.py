"""Outgoing webhooks, which report events of an agent's memories, and authentication of requests to incoming hooks."""
