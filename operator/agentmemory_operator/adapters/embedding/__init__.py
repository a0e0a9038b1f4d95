"""Embedders and rerankers: models inside the process, and services over HTTP."""
