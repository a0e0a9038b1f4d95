"""Pure rules of entities: name extraction, graphs of names, and spreading activation."""
