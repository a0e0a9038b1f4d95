"""What controllers decides, by no clock, file, socket or port."""
