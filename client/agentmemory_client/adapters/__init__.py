"""Adapters of agent frameworks: one module each, which needs the extra of the same name. See docs/adapters.md."""
