"""The content of an object: kinds and their rules, the expression language, presets, and the settings in force."""
