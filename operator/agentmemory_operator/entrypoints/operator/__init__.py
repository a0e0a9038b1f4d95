"""Events in, passes out: the life of the operator process."""
