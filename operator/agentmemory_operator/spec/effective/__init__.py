"""What is in force for an object: its own words, else its preset, else a default."""
