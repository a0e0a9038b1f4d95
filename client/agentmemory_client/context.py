"""Format memories as a section of a prompt."""

from collections.abc import Callable, Iterable

from agentmemory_client.values import Memory


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text as a quarter of its characters, rounded up. Use it if no tokenizer is at hand."""
    return -(-len(text) // 4)


def render_line(memory: Memory | str) -> str:
    """Render a memory as a list item; '' for a locked memory. Further lines are indented, to stay in the item."""
    content = (memory if isinstance(memory, str) else memory.content or "").strip()
    return "- " + "\n  ".join(content.splitlines()) if content else ""


def format_context(
    memories: Iterable[Memory | str],
    *,
    limit: int,
    measure: Callable[[str], int] = len,
    render: Callable[[Memory | str], str] = render_line,
) -> str:
    r"""Join memories, in their order, up to a size limit; each is included completely or left out.

    A memory that does not fit is skipped; shorter ones after it may still fit. If none fits, the result is empty.
    Locked memories and empty texts are left out.

    Args:
        memories: Memories or texts, best first.
        limit: Maximum size of the whole text, in the unit of `measure`.
        measure: Size of a text. The default counts characters; `estimate_tokens` or a tokenizer counts tokens.
        render: Returns the text of one memory, '' to leave it out. The texts are joined by "\n".
    """
    text = ""
    for item in filter(None, map(render, memories)):
        longer = f"{text}\n{item}" if text else item
        if measure(longer) <= limit:
            text = longer
    return text
