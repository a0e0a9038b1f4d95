"""Events, their signatures, and the retry schedule. Pure."""
