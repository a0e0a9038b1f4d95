"""Language models, behind `ports.language_model`."""
