"""What material, answers and facts have to be like."""
