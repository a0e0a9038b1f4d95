"""Pure rules of the controllers: no clock, file, socket or port."""
