"""What is sent, signed how, and when again. Pure."""
