"""Commands that change nothing: validate, plan, orphans, status, preset."""
