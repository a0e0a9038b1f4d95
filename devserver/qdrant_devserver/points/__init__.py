"""Points: read, searched and changed, with what requests for them say translated for the engine."""
