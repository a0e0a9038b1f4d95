"""The retrieval API over HTTP. `app.create_app` builds the application.

The packages `memories`, `transfer` and `identity` have the routes and their request models. `load` limits the
resources that requests use, `mcp` serves the tools for language models, `mem0` the clients of mem0, and `ui` pages for
browsers. The modules of this package are shared by all routes: body parsing, field types, response rendering, problems
and the OpenAPI document.
"""
