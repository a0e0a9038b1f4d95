"""Export and import of a user's memories as JSON lines that keep ids and links."""
