"""HTTP server, HTTP clients, and the egress policy that all clients obey."""
