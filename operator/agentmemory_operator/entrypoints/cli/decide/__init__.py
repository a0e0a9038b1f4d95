"""Commands that approve, request or undo changes: approve, cleanup, consolidate, rebuild, takeover."""
