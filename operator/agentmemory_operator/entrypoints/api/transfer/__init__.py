"""The routes of export and import, the change log and incoming hooks, with their request models."""
