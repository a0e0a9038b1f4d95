"""What is named in a text, and how far names activate each other. Pure."""
