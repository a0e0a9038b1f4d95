"""The verbs that ask the retrieval API: search, remember, forget, receipts, export, import."""
