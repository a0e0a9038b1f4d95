"""What memories decides, by no clock, file, socket or port."""
