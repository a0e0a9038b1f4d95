"""Pure lifecycle rules: no clock, file, socket or port."""
