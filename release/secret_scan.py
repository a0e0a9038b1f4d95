"""Search for credentials in the tracked files, offline, with the rules of detect-secrets: `make audit`.

    usage: release/secret_scan.py [--accept]

secrets.json lists accepted findings (fakes in tests) by file, rule and hash: a line may move, another text is a new
finding. `--accept` rewrites the list for review.
"""

import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from detect_secrets.core.scan import scan_file
from detect_secrets.settings import transient_settings

ROOT = pathlib.Path(__file__).resolve().parents[1]
ACCEPTED = ROOT / "release" / "secrets.json"
# Rules for the form of a credential. Rules for entropy and for words like `password` have hundreds of false positives.
RULES = (
    *("ArtifactoryDetector", "AWSKeyDetector", "AzureStorageKeyDetector", "BasicAuthDetector", "CloudantDetector"),
    *(
        "DiscordBotTokenDetector",
        "GitHubTokenDetector",
        "GitLabTokenDetector",
        "IbmCloudIamDetector",
        "JwtTokenDetector",
    ),
    *(
        "MailchimpDetector",
        "NpmDetector",
        "OpenAIDetector",
        "PrivateKeyDetector",
        "PypiTokenDetector",
        "SendGridDetector",
    ),
    *("SlackDetector", "SoftlayerDetector", "SquareOAuthDetector", "StripeDetector", "TelegramBotTokenDetector"),
    "TwilioKeyDetector",
)
LOCKS = re.compile(r"^requirements/.*\.txt$|/go\.sum$")
Finding = tuple[str, str, str, int]
"""File, rule, hash of the text, line."""


def tracked() -> list[str]:
    """Return the committed and staged files, without lock files, which contain only names and hashes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file() and not LOCKS.search(name)]


def findings_in(name: str) -> list[Finding]:
    """Return the findings in a file."""
    with transient_settings({"plugins_used": [{"name": rule} for rule in RULES]}):
        return [(name, found.type, found.secret_hash, found.line_number) for found in scan_file(str(ROOT / name))]


def findings() -> Iterator[Finding]:
    """Yield the findings in all tracked files."""
    with ProcessPoolExecutor() as pool:
        for found in pool.map(findings_in, tracked(), chunksize=32):
            yield from found


def main(arguments: list[str]) -> int:
    """Print new findings, or accept all; return 1 if there are new ones."""
    found = sorted(set(findings()))
    if arguments == ["--accept"]:
        ACCEPTED.write_text(json.dumps(sorted({one[:3] for one in found}), indent=0) + "\n")
    accepted = {tuple(one) for one in json.loads(ACCEPTED.read_text())}
    new = [one for one in found if one[:3] not in accepted]
    for name, rule, _, line in new:
        print(f"{name}:{line}: {rule}", file=sys.stderr)
    gone = len(accepted - {one[:3] for one in found})
    print(f"{len(found)} that look like credentials, {len(new)} of them new; {gone} accepted ones are gone")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
