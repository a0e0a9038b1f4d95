"""Distillation: store the turns of conversations, and let a language model extract memories from them."""
