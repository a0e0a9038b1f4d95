"""The retrieval API over HTTP: requests in, use cases, answers out. `app.create_app` puts it together.

`memories`, `transfer` and `identity` hold routes with the requests that they read; `load` what all of them may take
up at once. What every route shares lies here: bodies, fields, answers, problems, the OpenAPI document.
"""
