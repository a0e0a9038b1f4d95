"""HTTP: routes, bodies, access control and responses."""
