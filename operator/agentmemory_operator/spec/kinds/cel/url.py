"""The rule of URLs, wherever one stands."""

from agentmemory_operator.spec.kinds.schema import CelRule

_PORT = "([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
# The brackets are escaped for the expression, the backslashes for CEL's text.
_IPV6 = r"\\[[0-9A-Fa-f:.]+\\]"
_HTTP_URL = f"^https?://([A-Za-z0-9._-]+|{_IPV6})(:{_PORT})?(/[A-Za-z0-9._~%!$&()*+,;=:@/-]*)?$"


def is_url(name: str, example: str) -> CelRule:
    """The rule that a field is an HTTP URL without credentials."""
    return CelRule(
        f"self.matches('{_HTTP_URL}')",
        f"{name} must be an http:// or https:// URL without user, query or fragment, for example {example}",
    )
