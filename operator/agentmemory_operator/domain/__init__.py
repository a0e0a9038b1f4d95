"""Pure decisions: no I/O, no clock, no vendor client."""
