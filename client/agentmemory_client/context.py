"""From memories to the part of a prompt that tells a model what is remembered."""

from collections.abc import Callable, Iterable

from agentmemory_client.values import Memory


def estimate_tokens(text: str) -> int:
    """How many tokens a text has, 4 characters each, rounded up: for a limit, where no tokenizer is at hand."""
    return -(-len(text) // 4)


def render_line(memory: Memory | str) -> str:
    """A memory as a list item; lines after the first are indented, so that they stay part of it."""
    content = memory if isinstance(memory, str) else memory.content or ""
    return "- " + content.strip().replace("\n", "\n  ")


def format_context(
    memories: Iterable[Memory | str],
    *,
    limit: int,
    measure: Callable[[str], int] = len,
    render: Callable[[Memory | str], str] = render_line,
) -> str:
    r"""As many memories as fit, in their order, which is best first; none is cut.

    One that does not fit is left out, and shorter ones after it may still fit. Nothing fits: the text is empty.

    Args:
        limit: of the whole text, in what `measure` counts.
        measure: counts characters; `estimate_tokens` or a tokenizer's own count gives tokens.
        render: gives the text of one memory; they are joined by "\n".
    """
    text = ""
    for memory in memories:
        longer = f"{text}\n{render(memory)}" if text else render(memory)
        if measure(longer) <= limit:
            text = longer
    return text
