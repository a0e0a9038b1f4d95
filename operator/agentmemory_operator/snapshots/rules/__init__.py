"""What snapshots decides, by no clock, file, socket or port."""
