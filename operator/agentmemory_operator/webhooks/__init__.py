"""Outgoing webhooks report events of an agent's memories. Incoming hooks authenticate signed requests."""
