"""What rebuilds decides, by no clock, file, socket or port."""
