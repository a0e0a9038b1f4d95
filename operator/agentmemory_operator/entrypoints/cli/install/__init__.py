"""Commands around an installation: init, crds, schema, completion, version, uninstall."""
