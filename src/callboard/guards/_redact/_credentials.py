"""Detectors of credentials: keys of services, tokens, and passwords in assignments, headers and URLs.

The text may be hostile, so every search takes linear time: repetitions are bounded, or can begin only where no other
repetition of the same kind can. Expressions begin with a literal where possible, and check the preceding text with a
lookbehind; so the regex engine skips most of a text quickly. Case-insensitive ones search a lower-case copy instead.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Iterator

from callboard.guards._redact._detectors import Detector, Finder, Span, in_pieces, matches, spans_of


def _keys(*forms: tuple[str, str]) -> Finder:
    """Return a finder of service keys; `forms` are pairs: the beginning of a key, and a pattern for its end."""
    return in_pieces("(?a)" + "|".join(rf"{head}(?<![\w-]{head}){tail}(?![\w-])" for head, tail in forms), _LONGEST)


_LONGEST = 300
"""Maximum characters that decide whether a text has a service key."""


def _is_mixed(text: str) -> bool:
    """Return whether a text has both letters and digits. Names of classes and files usually have letters only."""
    return any(char.isdigit() for char in text) and any(char.isalpha() for char in text)


_SERVICES = (
    Detector("anthropic_key", _keys(("sk-ant-", r"[\w-]{20,}"))),
    Detector("openai_key", _keys(("sk-", r"(?!ant-)[\w-]{20,}")), check=_is_mixed),
    Detector("aws_key", _keys(("A", "(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}"))),
    Detector("github_token", _keys(("gh", "[pousr]_[A-Za-z0-9]{36,255}"), ("github_pat_", r"\w{22,255}"))),
    Detector(
        "slack_token",
        in_pieces(
            r"(?a)x(?<![\w-]x)(?:ox[a-z](?:\.xox[a-z])?-|app-)[\w-]{10,}"
            r"|https://hooks\.slack\.com/(?:services|workflows|triggers)/[\w/]{20,}",
            _LONGEST,
        ),
    ),
    Detector("google_key", _keys(("AIza", r"[\w-]{35}"), ("GOCSPX-", r"[\w-]{28}"), (r"ya29\.", r"[\w-]{20,}"))),
    Detector(
        "stripe_key",
        _keys(
            ("sk_", "(?:live|test)_[A-Za-z0-9]{10,}"),
            ("rk_", "(?:live|test)_[A-Za-z0-9]{10,}"),
            ("whsec_", "[A-Za-z0-9+/]{24,}={0,2}"),
        ),
    ),
    Detector(
        "api_key",
        _keys(
            ("npm_", "[A-Za-z0-9]{36}"),
            ("pypi-AgE", r"[\w-]{50,}"),
            ("hf_", "[A-Za-z0-9]{34,40}"),
            (r"SG\.", r"[\w-]{16,32}\.[\w-]{16,64}"),  # SendGrid
            ("gsk_", "[A-Za-z0-9]{40,}"),  # Groq
            ("xai-", "[A-Za-z0-9]{40,}"),
            ("glpat-", r"[\w-]{20,}"),  # GitLab
            ("dop_v1_", "[a-f0-9]{64}"),  # DigitalOcean
            ("shp", "(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),  # Shopify
            ("lin_api_", "[A-Za-z0-9]{40}"),  # Linear
            ("dapi", "[a-f0-9]{32}"),  # Databricks
        ),
    ),
)

# Three forms: JWE with four parts after the header, JWS with two, and JWS without a signature.
_JWT = re.compile(r"(?a)eyJ[\w-]{8,}(?:\.[\w-]*(?:\.[\w-]+){3}|(?:\.[\w-]+){2}|\.[\w-]+\.(?![\w-]))")
_JWT_BEGIN = re.compile(r"(?a)eyJ(?<![\w-]eyJ)")


def _jwts(text: str) -> Iterator[Span]:
    done = 0
    for begin in matches(_JWT_BEGIN, text, len("eyJ")):
        if begin.start() >= done and (match := _JWT.match(text, begin.start())) is not None:
            done = match.end()
            yield match.span()


def _is_jwt(text: str) -> bool:
    head = text.partition(".")[0]
    try:
        header = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (ValueError, RecursionError):
        return False
    return isinstance(header, dict) and "alg" in header


_PEM_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_PEM_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
# Possessive quantifiers (`++`): no backtracking over a long body, which would take quadratic time.
_PEM_BODY = re.compile(
    r"(?:(?:\s|\\[nr])*+(?:[A-Za-z-]{1,20}+: [^\n\\]{0,80}+|[A-Za-z0-9+/=]{16,}+))++"
    r"(?:(?:\n|\\n)[A-Za-z0-9+/=]{1,15}+)?"
)


def _private_keys(text: str) -> Iterator[Span]:
    """Yield the spans of private key blocks (RFC 7468), also of truncated blocks: half a key is a secret as well."""
    done = 0
    # Both lists are walked once, forwards: searching the end anew for each beginning would take quadratic time.
    ends = [end.end() for end in _PEM_END.finditer(text)]
    ends.reverse()
    for begin in _PEM_BEGIN.finditer(text):
        if begin.start() < done:
            continue
        while ends and ends[-1] <= begin.end():
            ends.pop()
        body = _PEM_BODY.match(text, begin.end())
        if ends or body is not None:
            done = ends[-1] if ends or body is None else body.end()
            yield begin.start(), done


_PLAIN_WORD = re.compile(r"[^\W\d_]+[!?]?")
_REFERENCE = re.compile(
    r"\$\w+|\$?\{.*\}|\$\(.*\)|<.*>|%\w+%|\[.*\]"
    r"|(?:self|cls|os|sys|env|args|config|settings|process|request|secrets|vars|var)\.[\w.]+"
)


def _is_written_out(value: str) -> bool:
    """Return whether an assigned value is a literal secret, and neither a plain word nor a reference to a variable."""
    return _PLAIN_WORD.fullmatch(value) is None and _REFERENCE.fullmatch(value) is None


def _is_user_and_password(value: str) -> bool:
    try:
        return b":" in base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return False


_AUTHORIZATION = (
    (
        re.compile(
            r"authorization(?<![^\W_]authorization)\\{0,3}[\"']?\s{0,3}[:=]\s{0,3}\\{0,3}[\"']?"
            r"(?:(?:bearer|basic|digest|negotiate|token|apikey)\s{1,3})?(?P<secret>[^\s\"'\\,;<>]{6,8192}(?<!\.))"
        ),
        _is_written_out,
    ),
    (
        re.compile(r"bearer(?<![^\W_]bearer)\s{1,3}(?P<secret>(?=[a-z._~+/-]{0,64}[0-9])[\w.~+/=-]{16,8192}(?<!\.))"),
        _is_written_out,
    ),
    (re.compile(r"basic(?<![^\W_]basic)\s{1,3}(?P<secret>[a-z0-9+/]{8,1024}={0,2})(?![\w+/=])"), _is_user_and_password),
)


def _authorizations(text: str) -> Iterator[Span]:
    """Yield the spans of credentials that follow `Authorization:`, or the name of a scheme such as `Bearer`."""
    # See RFC 9110, section 11.6.2.
    lowered = _lower(text)
    for pattern, check in _AUTHORIZATION:
        yield from (span for span in spans_of(pattern, lowered, 9_000) if check(text[slice(*span)]))


def _lower(text: str) -> str:
    """Return a text in lower case, of the same length, so that each character keeps its index."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    # A few characters become longer in lower case, such as U+0130. They stay as they are, or all spans would shift.
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


_AUTHORITY = r"://(?<=[A-Za-z0-9+.-]://)[^\s/?#:@\"'<>]{0,256}:(?P<secret>[^\s/?#\"'<>]{1,256})@(?=[\w\[])"

_BEFORE_KEY = ("api", "access", "secret", "private", "account", "encryption", "signing", "auth", "subscription")
_BEFORE_TOKEN = ("access", "auth", "refresh", "id", "api", "bot", "session", "bearer", "csrf", "xsrf")


def _after(prefixes: Iterable[str], suffix: str) -> str:
    return "|".join(rf"(?<={prefix}{suffix})|(?<={prefix}[_ -]{suffix})" for prefix in prefixes)


_KEY = (
    r"(?:pass(?:word|wd|phrase|code|(?<=[a-z0-9][_-]pass))|pwd(?<![a-z]pwd)(?!=/)|secret"
    rf"|key(?:{_after(_BEFORE_KEY, 'key')})|token(?:{_after(_BEFORE_TOKEN, 'token')}|(?<![\w-]token)))"
)
_IS_KEY = re.compile(rf"(?i:{_KEY}|(?<![a-z])pass|credentials?|cookies?)$|(?<=[a-z])Pass$")
_HANDED_ON = re.compile(rf"(?i)(?:[a-z0-9_]{{0,64}}_)?(?:{'|'.join((*_BEFORE_KEY, *_BEFORE_TOKEN))})?{_KEY}")
_ASSIGNMENT = re.compile(
    rf"{_KEY}(?:\\{{0,3}}[\"'`])?\]?"
    r"(?:>(?P<element>[^<>\n]{4,512})</"
    r"|\s{0,4}(?P<sign>=>|:=|:\s{0,4}str(?:ing)?\s{0,4}=|[:=])\s{0,4}"
    r"(?:(?P<open>\\{0,3}[\"'`])(?P<quoted>.{4,4096}?)(?P=open)"
    r"|(?P<bare>[^\s\"'`,;&<>(){}\[\]]{4,512}+)(?![(\[])))"
)
_ABOUT_VALUES = re.compile(
    r"(?i)none|null|true|false|undefined|string|required|optional|redacted|hidden|masked|changeme|placeholder|todo"
    r"|include|omit|same-origin"
)


def _assignments(text: str) -> Iterator[Span]:
    for match in matches(_ASSIGNMENT, _lower(text), 5_000):
        start, end = match.span(match.lastgroup or 0)
        if match.lastgroup == "bare":
            end -= text[end - 1] == "."
            # After a colon a plain word may be prose or a type: `password: required`.
            if match["sign"] == ":" and _PLAIN_WORD.fullmatch(text, start, end):
                continue
        if _is_password(text[start:end]):
            yield start, end


def _is_password(value: str) -> bool:
    """Return whether a value looks like a password, and not like a placeholder or a reference to a variable."""
    if len(value) < 4 or len(set(value)) == 1 or _ABOUT_VALUES.fullmatch(value) or _REFERENCE.fullmatch(value):
        return False
    # `password=password` passes a variable on.
    return _HANDED_ON.fullmatch(value) is None


CREDENTIALS = (
    Detector("private_key", _private_keys),
    Detector("jwt", _jwts, check=_is_jwt),
    *_SERVICES,
    Detector("authorization", _authorizations),
    Detector("url_password", in_pieces(_AUTHORITY, 600), check=lambda value: _REFERENCE.fullmatch(value) is None),
    Detector("password", _assignments, check=_is_password, keys=_IS_KEY),
)
