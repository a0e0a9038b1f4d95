"""HTTP server, HTTP clients, and the check of outgoing connections against the egress policy."""
