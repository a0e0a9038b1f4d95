"""Language models; implementations of `ports.models.LanguageModel`."""
