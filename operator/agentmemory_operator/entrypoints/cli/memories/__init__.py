"""Commands that call the retrieval API: on memories, their erasure, export and import."""
