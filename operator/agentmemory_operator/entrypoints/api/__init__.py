"""The retrieval API over HTTP: requests in, use cases, answers out. `app.create_app` puts it together."""
