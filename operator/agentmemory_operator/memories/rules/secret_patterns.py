"""Patterns of secrets, in addition to those of a library (`adapters/detect_secrets_rules.py`).

Every pattern reads a text in linear time, which a test checks:
- It starts with a literal or at a boundary, so no part of the text is scanned from each of its positions.
- Repetitions are bounded, or end at a character that cannot recur inside.
- It stays within a line, except for private keys.
"""

import re

from agentmemory_operator.memories.rules.scrubbing import Check, Kind, SecretRule

_START = r"(?<![\w-])"

# Kind, literal prefix and remaining pattern of keys with a prefix that identifies their issuer.
PREFIXED: tuple[tuple[Kind, str, str], ...] = (
    ("api-key", "sk-", r"[\w-]{20,}"),
    ("api-key", "github_pat_", r"\w{22,}"),
    ("api-key", "hf_", r"[A-Za-z0-9]{30,}"),
    ("api-key", "r8_", r"[A-Za-z0-9]{32,}"),
    ("api-key", "gsk_", r"[A-Za-z0-9]{32,}"),
    ("api-key", "xai-", r"[A-Za-z0-9]{40,}"),
    ("api-key", "pplx-", r"[A-Za-z0-9]{32,}"),
    ("api-key", "tvly-", r"[\w-]{20,}"),
    ("api-key", "sk_live_", r"\w{16,}"),
    ("api-key", "sk_test_", r"\w{16,}"),
    ("api-key", "rk_live_", r"\w{16,}"),
    ("api-key", "rk_test_", r"\w{16,}"),
    ("api-key", "whsec_", r"[\w+/=]{24,}"),
    ("api-key", "npm_", r"[A-Za-z0-9]{36,}"),
    ("api-key", "dop_v1_", r"[a-f0-9]{40,}"),
    ("api-key", "shpat_", r"[a-fA-F0-9]{32,}"),
    ("api-key", "shpss_", r"[a-fA-F0-9]{32,}"),
    ("api-key", "NRAK-", r"[A-Z0-9]{20,}"),
    ("api-key", "lin_api_", r"\w{32,}"),
    ("api-key", "ntn_", r"[A-Za-z0-9]{40,}"),
    ("api-key", "figd_", r"[\w-]{32,}"),
    ("api-key", "PMAK-", r"[a-f0-9-]{40,}"),
    ("api-key", "rubygems_", r"[a-f0-9]{40,}"),
    ("api-key", "ATATT3", r"[\w=-]{40,}"),
    ("api-key", "tskey-", r"[\w-]{20,}"),
    ("token", "dckr_pat_", r"[\w-]{20,}"),
    ("token", "glsa_", r"\w{32,}"),
    ("token", "hvs.", r"[\w-]{24,}"),
    ("token", "xapp-", r"[\w-]{20,}"),
    ("token", "xoxe.", r"[\w.-]{20,}"),
    ("cloud-key", "AIza", r"[\w-]{35,}"),
    ("cloud-key", "ya29.", r"[\w-]{20,}"),
    ("cloud-key", "GOCSPX-", r"[\w-]{20,}"),
    ("cloud-key", "dapi", r"[a-f0-9]{32,}"),
    ("private-key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{50,}"),
)

# Spells the first letters as a character class, so that the regex engine skips to positions where a match may start.
_PASSWORD = r"[pP](?i:ass(?:word|wd|code|phrase)|wd)"
# Words in German, French, Spanish, Portuguese, Russian, Chinese and Japanese. Letters beyond ASCII are escaped.
FOREIGN_PASSWORDS = (
    "passwort",
    "kennwort",
    "mot de passe",
    "contrase\u00f1a",
    "senha",
    "\u043f\u0430\u0440\u043e\u043b\u044c",
    "\u5bc6\u7801",
    "\u30d1\u30b9\u30ef\u30fc\u30c9",
)
_FOREIGN = f"(?i:{'|'.join(FOREIGN_PASSWORDS)})"
PASSWORD_HINTS = ("pass", "pwd")
_PHRASE = r"[pPsSrRmM](?i:ass[ -]?phrase|eed[ -]phrase|ecovery[ -]phrase|nemonic)"
# Words that turn "key", "token" or "secret" into a credential. A space, `_`, `.`, `-` or nothing separates the two.
NAMES = {
    "key": "api access secret signing encryption master account consumer license app",
    "token": "api access auth refresh session bearer id bot deploy csrf",
    "secret": "client webhook app consumer signing shared jwt",
}
_PRECEDED = "|".join(
    rf"(?<={first}{between}{last})"
    for last, firsts in NAMES.items()
    for first in firsts.split()
    for between in ("", "[ _.-]")
)
_KEY = rf"[kKtTsS](?i:ey|oken|ecret)(?i:{_PRECEDED})"
KEY_HINTS = ("key", "token", "secret")
_BARE_NAME = r"[tTsScC](?:(?<![A-Za-z].)(?i:oken|ecret|redential))s?"

# Separator of a name and its value: `: `, `=`, `: "`, `": "`, `=>` or a fullwidth colon, never across lines.
_SEP = r"[\"'`]?[ \t]{0,3}(?:=>|:=|={1,2}|:|\uff1a)[ \t]{0,3}"
_BARE = r"(?:[^\s\"'`,;&]|[,;&](?=[^\s,;&])(?![\w.-]{1,40}[=:])){3,256}"
_VALUE = rf"(?:\"([^\"\n]{{1,256}})\"|'([^'\n]{{1,256}})'|`([^`\n]{{1,256}})`|({_BARE}))"
_WORD = r"[\"'\u201c`]?([^\s\"'\u201d`]{4,128})"
_SECRET = r"[\w+/=.~-]{12,512}"


def _prefixed(kind: Kind, prefix: str, suffix: str) -> SecretRule:
    pattern = re.compile(rf"{_START}{re.escape(prefix)}{suffix}")
    return SecretRule(kind=kind, pattern=pattern, hints=(prefix.lower(),), is_token=True, check="random")


def _rule(kind: Kind, pattern: str, *hints: str, check: Check = "any") -> SecretRule:
    return SecretRule(kind=kind, pattern=re.compile(pattern), hints=hints, check=check)


OWN_RULES: tuple[SecretRule, ...] = (
    SecretRule(
        kind="private-key",
        pattern=re.compile(
            r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
            r"(?:(?:(?!-----)[\s\S])*-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"
            r"|(?:(?:\\[rn]|\s){0,4}[A-Za-z0-9+/=]{16,})+)"
        ),
        hints=("private key",),
    ),
    SecretRule(
        kind="private-key",
        pattern=re.compile(r"Private-Lines: \d{1,4}((?:\r?\n[A-Za-z0-9+/=]{16,})+)"),
        hints=("private-lines",),
    ),
    SecretRule(
        kind="jwt",
        pattern=re.compile(rf"{_START}eyJ[\w-]{{8,}}(?:\.[\w-]*){{2,4}}(?![\w-])"),
        hints=("eyj",),
        is_token=True,
    ),
    *(_prefixed(*entry) for entry in PREFIXED),
    _rule(
        "connection-string",
        r"(?<![A-Za-z0-9+.-])[A-Za-z][A-Za-z0-9+.-]{1,30}://[^\s:/@\"'<>]{0,128}:([^\s/\"'<>]{1,256})@(?=[\w.\[-])",
        "://",
        check="value",
    ),
    _rule("bearer-token", r"[bB](?<![\w-].)(?i:earer)[ \t]{1,4}([\w.~+/=-]{12,4096})", "bearer", check="random"),
    _rule("password", rf"[aA](?i:uthorization){_SEP}[\"']?(?i:basic)[ \t]{{1,4}}([\w+/=-]{{8,4096}})", "authorization"),
    _rule("cloud-key", r"[?&](?i:sig|x-amz-signature|x-goog-signature)=([\w%+/=-]{30,1024})", "sig", "signature"),
    _rule("token", r"discord(?:app)?\.com/api/webhooks/\d{5,20}/([\w-]{20,128})", "webhooks"),
    _rule("password", f"{_PASSWORD}{_SEP}{_VALUE}", *PASSWORD_HINTS, check="value"),
    _rule("password", f"{_FOREIGN}{_SEP}{_VALUE}", *FOREIGN_PASSWORDS, check="value"),
    _rule("password", r"[pP](?<![A-Za-z].)(?i:ass)=([^\s\"'`,;&]{3,256})", "pass=", check="value"),
    _rule(
        "password",
        rf"{_PASSWORD}(?: for [\w@.-]{{1,40}}(?: [\w@.-]{{1,40}}){{0,2}})?[ \t]{{1,3}}"
        rf"(?:is|was|has been (?:changed|set) to|changed to|set to|to)[ \t]{{1,3}}{_WORD}",
        *PASSWORD_HINTS,
        check="random",
    ),
    _rule("password", rf"{_PHRASE}{_SEP}[\"']?([^\s.;\"']+(?: [^\s.;\"']+){{3,31}})", "phrase", "mnemonic"),
    _rule("password", r"--(?:password|passwd|pass)[ \t]{1,3}[\"']?([^\s\"'-][^\s\"']{2,128})", "--pass", check="value"),
    _rule("token", r"--(?:token|api-key|secret)[ \t]{1,3}[\"']?([^\s\"'-][^\s\"']{7,512})", "--", check="random"),
    _rule("password", r"(?<!\S)-u[ \t]{1,3}[\w.@-]{1,64}:([^\s\"']{3,128})", "-u", check="random"),
    _rule("api-key", rf"{_KEY}(?:{_SEP}|[ \t]{{1,3}}is[ \t]{{1,3}})[\"'`]?({_SECRET})", *KEY_HINTS, check="random"),
    _rule("token", rf"{_BARE_NAME}(?:{_SEP}|[ \t]{{1,3}}is[ \t]{{1,3}})[\"'`]?({_SECRET})", *KEY_HINTS, check="random"),
)
