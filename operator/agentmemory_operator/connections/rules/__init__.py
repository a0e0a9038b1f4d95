"""What connections decides, by no clock, file, socket or port."""
