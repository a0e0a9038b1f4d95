"""HTTP servers and clients, and where they may connect."""
