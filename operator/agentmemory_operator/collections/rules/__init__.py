"""What collections decides, by no clock, file, socket or port."""
