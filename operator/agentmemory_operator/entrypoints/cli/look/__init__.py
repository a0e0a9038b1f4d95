"""The verbs that change nothing: validate, plan, orphans, status, preset."""
