"""The kinds: spec, status, and the rules of admission."""
