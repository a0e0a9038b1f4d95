"""The expression language of scores, for example `similarity * decay(ageDays, 30)`.

`syntax.py` parses a text. `typing.py` checks it and builds a tree, with nodes of `tree.py` and `choices.py` and the
variables of `variables.py`. A tree is evaluated in Python, or compiled to a formula of Qdrant (`formulas.py`).
`intervals.py` bounds its value: an expression that may overflow or divide by 0 is rejected.
"""
