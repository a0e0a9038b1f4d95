"""What runtime decides, by no clock, file, socket or port."""
