"""The keys of privacy zones: made, wrapped, found again, destroyed, outside every collection and snapshot."""
