"""HTTP: paths, bodies, who gets in, and the form of answers."""
