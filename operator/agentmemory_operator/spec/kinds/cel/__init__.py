"""CEL rules of the kinds: what no single field's bounds can say.

Each runs twice: in the API server, as part of the CRD, and in `parse` over the same JSON. A rule may use only what
both engines share; `size` of a text counts bytes in one and characters in the other, so pair it with a pattern.
"""
