"""How much one process serves at once: of requests, bytes and parts of JSON; what is beyond is sent away."""
