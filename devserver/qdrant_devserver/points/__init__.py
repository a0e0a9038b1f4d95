"""Points: read, search and change them; their requests are translated for the engine."""
