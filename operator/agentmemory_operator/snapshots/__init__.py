"""Snapshots of agents: create, copy, verify, keep by retention rules, and remove them."""
