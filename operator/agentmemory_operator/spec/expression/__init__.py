"""The expression language of filters and scores."""
