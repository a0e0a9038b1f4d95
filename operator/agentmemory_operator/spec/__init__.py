"""What an object says and means: kinds and their rules, the expression language, presets, settings in force."""
