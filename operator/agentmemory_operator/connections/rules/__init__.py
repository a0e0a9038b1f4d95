"""Pure decisions about connections: no clock, file, socket or port."""
