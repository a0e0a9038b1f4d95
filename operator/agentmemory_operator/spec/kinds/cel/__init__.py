"""CEL rules of the kinds: constraints that the bounds of a single field cannot express.

Each rule runs twice: in the CEL evaluator of the API server, as part of the CRD, and in the CEL evaluator of `parse`
over the same JSON. A rule may only use features that both evaluators implement equally. `size` of a string counts bytes
in one of them and characters in the other, so combine `size` with a pattern.
"""
