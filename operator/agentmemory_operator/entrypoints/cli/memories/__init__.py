"""Commands that call the retrieval API: search, remember, forget, receipts, export, import."""
