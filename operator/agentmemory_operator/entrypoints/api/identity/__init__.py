"""Who calls, what it may do, and the routes about both."""
