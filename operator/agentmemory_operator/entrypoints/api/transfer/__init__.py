"""What carries memories in and out: export and import, the change log, hooks."""
