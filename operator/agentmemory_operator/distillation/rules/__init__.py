"""What turns are stored as, what a model is asked of them, and what of its answer counts."""
