"""What a rule says of the preset: its figure, as CEL."""

from collections.abc import Callable

from agentmemory_operator.spec.presets import DEFAULT_PRESET, PRESETS, Preset


def of_preset(figure: Callable[[Preset], int | str]) -> str:
    """CEL over the spec for a figure of its preset."""
    figures = {name: repr(figure(revisions[-1])) for name, revisions in PRESETS.items()}
    default = chain = figures[DEFAULT_PRESET]
    for name, value in figures.items():
        chain = chain if value == default else f"self.preset == '{name}' ? {value} : {chain}"
    return default if chain == default else f"(has(self.preset) ? ({chain}) : {default})"
