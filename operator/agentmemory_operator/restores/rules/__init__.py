"""What restores decides, by no clock, file, socket or port."""
