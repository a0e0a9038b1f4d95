"""Embedders and rerankers, inside the process and over HTTP."""
