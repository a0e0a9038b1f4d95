"""The verbs around an installation: its definitions, its end, completion and version."""
