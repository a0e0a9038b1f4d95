"""What lifecycle decides, by no clock, file, socket or port."""
