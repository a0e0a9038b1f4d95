"""The Model Context Protocol at `/mcp`. A call of a tool becomes a request to the API."""
