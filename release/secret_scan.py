"""Look for credentials in the tracked files, offline, with the rules of detect-secrets: `make audit`.

    usage: release/secret_scan.py [--accept]

What was looked at and is no credential (those that tests plant) stands in secrets.json by file, rule and hash: a line
may move, another text is new. `--accept` writes that list again, which a reviewer reads.
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
# Rules that know the form of a credential. Those of entropy and of words like `password` find hundreds that are none.
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
"""File, rule, hash of what was found, line."""


def tracked() -> list[str]:
    """The files that are committed or staged, without locks, which hold nothing but names and hashes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.split("\0") if (ROOT / name).is_file() and not LOCKS.search(name)]


def findings_in(name: str) -> list[Finding]:
    """What the rules find in a file."""
    with transient_settings({"plugins_used": [{"name": rule} for rule in RULES]}):
        return [(name, found.type, found.secret_hash, found.line_number) for found in scan_file(str(ROOT / name))]


def findings() -> Iterator[Finding]:
    """Everything that is found."""
    with ProcessPoolExecutor() as pool:
        for found in pool.map(findings_in, tracked(), chunksize=32):
            yield from found


def main(arguments: list[str]) -> int:
    """Print what is new, or accept it."""
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
