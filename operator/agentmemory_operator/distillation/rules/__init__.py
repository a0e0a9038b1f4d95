"""Pure rules of distillation: prompts, answer schemas, and the checks of a model's answer."""
