"""Measurements of the retrieval API against the bare engine, in one run; `python -m bench`."""
