"""Reconciliation of one collection (observe, plan, refuse, apply, read back), and ownership of slugs by namespaces."""
