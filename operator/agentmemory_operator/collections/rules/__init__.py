"""Pure decisions about collections: no clock, file, socket or port."""
