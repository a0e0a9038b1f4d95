"""The content of an object: kinds and their rules, the expression language, presets, and the settings in force.

1. `kinds/` has a pydantic model for each kind. The CRDs are generated from the models, with CEL rules of `kinds/cel`.
   `kinds/parse.py` applies the same rules to files, and `kinds/preset_checks.py` what depends on a preset.
2. `presets/table.py` defines the figures, `presets/designs.py` their values for each preset, `presets/profiles.py` the
   index figures by purpose and size.
3. `effective/` combines an object with its preset into the settings in force, for the operator and for the API.
4. `expression/` parses, checks and bounds score expressions.

Invariant: the same object has the same settings in every process. A definition contains no figure of a preset, so
figures change with the version of the operator only.

Tests: `tests/unit/spec`.
"""
