"""What search decides, by no clock, file, socket or port."""
