"""What happened to an agent's memories, sent to whoever its object names; and who has signed what comes in."""
