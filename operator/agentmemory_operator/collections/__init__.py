"""One collection from what is desired: plan, refuse, apply, read back; and which namespace its name belongs to."""
