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

from callboard.guards._redact._detectors import Detector, Finder, Span, find_matches, find_spans, make_finder


def _make_key_finder(*forms: tuple[str, str]) -> Finder:
    """Return a finder of service keys; `forms` are pairs: the beginning of a key, and a pattern for its end."""
    return make_finder(
        "(?a)" + "|".join(rf"{head}(?<![\w-]{head}){tail}(?![\w-])" for head, tail in forms), _KEY_LOOKAHEAD_CHARS
    )


_KEY_LOOKAHEAD_CHARS = 300
"""Maximum characters that decide whether a text has a service key."""


def _has_letters_and_digits(text: str) -> bool:
    """Return whether a text has both letters and digits. Names of classes and files usually have letters only."""
    return any(char.isdigit() for char in text) and any(char.isalpha() for char in text)


_SERVICES = (
    Detector("anthropic_key", _make_key_finder(("sk-ant-", r"[\w-]{20,}"))),
    Detector("openai_key", _make_key_finder(("sk-", r"(?!ant-)[\w-]{20,}")), check=_has_letters_and_digits),
    Detector("aws_key", _make_key_finder(("A", "(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}"))),
    Detector("github_token", _make_key_finder(("gh", "[pousr]_[A-Za-z0-9]{36,255}"), ("github_pat_", r"\w{22,255}"))),
    Detector(
        "slack_token",
        make_finder(
            r"(?a)x(?<![\w-]x)(?:ox[a-z](?:\.xox[a-z])?-|app-)[\w-]{10,}"
            r"|https://hooks\.slack\.com/(?:services|workflows|triggers)/[\w/]{20,}",
            _KEY_LOOKAHEAD_CHARS,
        ),
    ),
    Detector(
        "google_key", _make_key_finder(("AIza", r"[\w-]{35}"), ("GOCSPX-", r"[\w-]{28}"), (r"ya29\.", r"[\w-]{20,}"))
    ),
    Detector(
        "stripe_key",
        _make_key_finder(
            ("sk_", "(?:live|test)_[A-Za-z0-9]{10,}"),
            ("rk_", "(?:live|test)_[A-Za-z0-9]{10,}"),
            ("whsec_", "[A-Za-z0-9+/]{24,}={0,2}"),
        ),
    ),
    Detector(
        "api_key",
        _make_key_finder(
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


def _find_jwts(text: str) -> Iterator[Span]:
    end_of_last_secret = 0
    # The parts inside of a JWT have the same beginning, so a beginning before the end of the last match is skipped.
    for begin in find_matches(_JWT_BEGIN, text, lookahead_chars=len("eyJ")):
        if begin.start() >= end_of_last_secret and (match := _JWT.match(text, begin.start())) is not None:
            end_of_last_secret = match.end()
            yield match.span()


def _has_jwt_header(text: str) -> bool:
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


def _find_private_keys(text: str) -> Iterator[Span]:
    """Yield the spans of private key blocks (RFC 7468), also of truncated blocks: half a key is a secret as well."""
    end_of_last_secret = 0
    # Both lists are walked once, forwards: searching the end anew for each beginning would take quadratic time.
    ends = [end.end() for end in _PEM_END.finditer(text)]
    ends.reverse()
    for begin in _PEM_BEGIN.finditer(text):
        if begin.start() < end_of_last_secret:
            continue
        while ends and ends[-1] <= begin.end():
            ends.pop()
        body = _PEM_BODY.match(text, begin.end())
        if ends:
            end_of_last_secret = ends[-1]
        elif body is not None:  # truncated
            end_of_last_secret = body.end()
        else:
            continue
        yield begin.start(), end_of_last_secret


_PLAIN_WORD = re.compile(r"[^\W\d_]+[!?]?")
_VARIABLE_REFERENCE = re.compile(
    r"\$\w+|\$?\{.*\}|\$\(.*\)|<.*>|%\w+%|\[.*\]"
    r"|(?:self|cls|os|sys|env|args|config|settings|process|request|secrets|vars|var)\.[\w.]+"
)


def _is_literal_secret(value: str) -> bool:
    """Return whether an assigned value is a literal secret, and neither a plain word nor a reference to a variable."""
    return _PLAIN_WORD.fullmatch(value) is None and _VARIABLE_REFERENCE.fullmatch(value) is None


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
        _is_literal_secret,
    ),
    (
        re.compile(r"bearer(?<![^\W_]bearer)\s{1,3}(?P<secret>(?=[a-z._~+/-]{0,64}[0-9])[\w.~+/=-]{16,8192}(?<!\.))"),
        _is_literal_secret,
    ),
    (re.compile(r"basic(?<![^\W_]basic)\s{1,3}(?P<secret>[a-z0-9+/]{8,1024}={0,2})(?![\w+/=])"), _is_user_and_password),
)


def _find_authorizations(text: str) -> Iterator[Span]:
    """Yield the spans of credentials that follow `Authorization:`, or the name of a scheme such as `Bearer`."""
    # See RFC 9110, section 11.6.2.
    lowered = _lower_same_length(text)
    for pattern, check in _AUTHORIZATION:
        yield from (span for span in find_spans(pattern, lowered, lookahead_chars=9_000) if check(text[slice(*span)]))


def _lower_same_length(text: str) -> str:
    """Return a text in lower case, of the same length, so that each character keeps its index."""
    lowered = text.lower()
    if len(lowered) == len(text):
        return lowered
    # A few characters become longer in lower case, such as U+0130. They stay as they are, or all spans would shift.
    return "".join(char.lower() if len(char.lower()) == 1 else char for char in text)


_AUTHORITY = r"://(?<=[A-Za-z0-9+.-]://)[^\s/?#:@\"'<>]{0,256}:(?P<secret>[^\s/?#\"'<>]{1,256})@(?=[\w\[])"

_BEFORE_KEY = ("api", "access", "secret", "private", "account", "encryption", "signing", "auth", "subscription")
_BEFORE_TOKEN = ("access", "auth", "refresh", "id", "api", "bot", "session", "bearer", "csrf", "xsrf")


def _make_lookbehinds(prefixes: Iterable[str], suffix: str) -> str:
    """Return a pattern for the end of a name such as `api_key`: a prefix, a separator or none, and the suffix."""
    return "|".join(rf"(?<={prefix}{suffix})|(?<={prefix}[_ -]{suffix})" for prefix in prefixes)


_PASSWORD_NAME = (
    r"(?:pass(?:word|wd|phrase|code|(?<=[a-z0-9][_-]pass))|pwd(?<![a-z]pwd)(?!=/)|secret"
    rf"|key(?:{_make_lookbehinds(_BEFORE_KEY, 'key')})"
    rf"|token(?:{_make_lookbehinds(_BEFORE_TOKEN, 'token')}|(?<![\w-]token)))"
)
_PASSWORD_KEY = re.compile(rf"(?i:{_PASSWORD_NAME}|(?<![a-z])pass|credentials?|cookies?)$|(?<=[a-z])Pass$")
_PASSED_VARIABLE = re.compile(
    rf"(?i)(?:[a-z0-9_]{{0,64}}_)?(?:{'|'.join((*_BEFORE_KEY, *_BEFORE_TOKEN))})?{_PASSWORD_NAME}"
)
_ASSIGNMENT = re.compile(
    rf"{_PASSWORD_NAME}(?:\\{{0,3}}[\"'`])?\]?"
    r"(?:>(?P<element>[^<>\n]{4,512})</"
    r"|\s{0,4}(?P<sign>=>|:=|:\s{0,4}str(?:ing)?\s{0,4}=|[:=])\s{0,4}"
    r"(?:(?P<open>\\{0,3}[\"'`])(?P<quoted>.{4,4096}?)(?P=open)"
    r"|(?P<unquoted>[^\s\"'`,;&<>(){}\[\]]{4,512}+)(?![(\[])))"
)
_PLACEHOLDER = re.compile(
    r"(?i)none|null|true|false|undefined|string|required|optional|redacted|hidden|masked|changeme|placeholder|todo"
    r"|include|omit|same-origin"
)


def _find_assigned_passwords(text: str) -> Iterator[Span]:
    for match in find_matches(_ASSIGNMENT, _lower_same_length(text), lookahead_chars=5_000):
        # The last group is the value, in one of three forms: "element", "quoted" or "unquoted".
        start, end = match.span(match.lastgroup or 0)
        if match.lastgroup == "unquoted":
            if text[end - 1] == ".":  # the end of a sentence
                end -= 1
            # After a colon a plain word may be prose or a type: `password: required`.
            if match["sign"] == ":" and _PLAIN_WORD.fullmatch(text, start, end):
                continue
        if _looks_like_password(text[start:end]):
            yield start, end


def _looks_like_password(value: str) -> bool:
    """Return whether a value looks like a password, and not like a placeholder or a reference to a variable."""
    if len(value) < 4 or len(set(value)) == 1 or _PLACEHOLDER.fullmatch(value) or _VARIABLE_REFERENCE.fullmatch(value):
        return False
    # `password=password` passes a variable on.
    return _PASSED_VARIABLE.fullmatch(value) is None


CREDENTIALS = (
    Detector("private_key", _find_private_keys),
    Detector("jwt", _find_jwts, check=_has_jwt_header),
    *_SERVICES,
    Detector("authorization", _find_authorizations),
    Detector(
        "url_password",
        make_finder(_AUTHORITY, lookahead_chars=600),
        check=lambda value: _VARIABLE_REFERENCE.fullmatch(value) is None,
    ),
    Detector("password", _find_assigned_passwords, check=_looks_like_password, keys=_PASSWORD_KEY),
)
