"""Rules of detect-secrets for tokens that their format alone identifies. The rest of the library is not used.

Left out, among others:
- JWT, OpenAI, npm and basic auth: their patterns can be slow on crafted text.
- Private keys: the detector finds only the start of a key.
- Detectors that need a name next to the token: `memories/rules/secret_patterns.py` covers these, in ordinary sentences
  too.
"""

from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.base import RegexBasedDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

from agentmemory_operator.memories.rules.scrubbing import Kind, SecretRule

# Kind of secret, detector, and hints: parts of the format in lower case, one of which a matching text must contain.
# With no hints, the patterns are tried on every text.
DETECTORS: tuple[tuple[Kind, type[RegexBasedDetector], tuple[str, ...]], ...] = (
    ("cloud-key", AWSKeyDetector, ("a3t", "abia", "acca", "akia", "asia", "aws")),
    ("cloud-key", AzureStorageKeyDetector, ("accountkey",)),
    ("token", DiscordBotTokenDetector, ()),
    ("token", GitHubTokenDetector, ("ghp_", "gho_", "ghu_", "ghs_", "ghr_")),
    ("token", GitLabTokenDetector, ()),
    ("api-key", MailchimpDetector, ("-us",)),
    ("token", PypiTokenDetector, ("pypi-",)),
    ("api-key", SendGridDetector, ("sg.",)),
    ("token", SlackDetector, ("xox", "hooks.slack.com")),
    ("api-key", SquareOAuthDetector, ("sq0csp-",)),
    ("api-key", StripeDetector, ("k_live_",)),
    ("token", TelegramBotTokenDetector, ()),
    ("api-key", TwilioKeyDetector, ()),
)


def library_rules() -> tuple[SecretRule, ...]:
    """Build a scrubbing rule for each pattern of the detectors."""
    return tuple(
        SecretRule(kind=kind, pattern=pattern, is_whole=detector is not AWSKeyDetector, hints=hints, is_token=True)
        for kind, detector, hints in DETECTORS
        for pattern in detector().denylist
    )
