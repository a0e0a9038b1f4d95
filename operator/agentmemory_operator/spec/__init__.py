"""The content of an object: kinds and their rules, the expression language, presets, and the settings in force.

1. `kinds/` has a pydantic model for each kind. The CRDs are generated from the models, with CEL rules of `kinds/cel`.
   `kinds/parse.py` applies the same rules offline, and `kinds/preset_checks.py` those that depend on a preset.
2. `presets/table.py` defines the figures, `presets/designs.py` their values for each preset, `presets/profiles.py` the
   index figures by purpose and size.
3. `effective/` combines an object with its preset into the settings in force, for the operator and for the API.
4. `expression/` parses, checks and bounds score expressions.

Invariant: the same object, with the same status, has the same settings in every process of a version. CRDs contain no
default values, so a figure of a preset changes only with the version of the operator.

Tests: `tests/unit/spec`.
"""
