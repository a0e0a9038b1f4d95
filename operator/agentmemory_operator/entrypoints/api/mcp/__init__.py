"""The Model Context Protocol at `/mcp`: tools for models, each of which is a request to the API itself."""
