"""The verbs by which a person decides: approve, cleanup, rebuild, takeover."""
