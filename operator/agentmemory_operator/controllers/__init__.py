"""One reconcile of each kind: parse, deletion, slug, collection, status, events."""
