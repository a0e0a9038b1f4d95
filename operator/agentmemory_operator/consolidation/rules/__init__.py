"""Pure rules of consolidation: material for the model, checks of its answers, and plans."""
