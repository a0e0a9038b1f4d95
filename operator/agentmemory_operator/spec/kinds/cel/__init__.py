"""CEL rules of the kinds: constraints that the bounds of a single field cannot express.

Each rule runs twice: in the API server, as part of the CRD, and in `parse` over the same JSON. A rule may only use
features that both engines implement equally. `size` of a string counts bytes in one and characters in the other, so
combine it with a pattern.
"""
