"""The detectors of `Redact`: a table of findings and non-findings, hostile text, and overlaps."""

import base64
import json
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.guards import DEFAULT_DETECTORS, Detector, Redact
from callboard.guards._redact._detectors import Finding, findings, literals
from callboard.guards._redact._redaction import detectors_of

ALL = (*DEFAULT_DETECTORS, "ip", "us_ssn", "high_entropy")


def b64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


# Written in parts, so that scanners of the repository do not report them as secrets.
RANDOM = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0"
OPENAI = "sk-" + "proj-" + RANDOM
ANTHROPIC = "sk-" + "ant-api03-" + RANDOM
AWS = "AK" + "IAIOSFODNN7EXAMPLE"
GITHUB = "gh" + "p_" + RANDOM[:36]
GITHUB_FINE = "github" + "_pat_" + RANDOM
SLACK = "xo" + "xb-123456789012-" + RANDOM[:24]
SLACK_HOOK = "https://hooks.slack" + ".com/services/T00000000/B00000000/" + RANDOM[:24]
GOOGLE = "AI" + "za" + RANDOM[:35]
STRIPE = "sk" + "_live_" + RANDOM[:24]
GITLAB = "gl" + "pat-" + RANDOM[:20]
NPM = "np" + "m_" + RANDOM[:36]
JWT = f"{b64({'alg': 'HS256', 'typ': 'JWT'})}.{b64({'sub': '1234567890'})}.{RANDOM}"
UNSIGNED = f"{b64({'alg': 'none', 'typ': 'JWT'})}.{b64({'sub': '1234567890'})}."
PEM = (
    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEowIBAAKCAQEA1c7+9z5Pad7OejecsQ0b\nu3aozN3tihPmUHlm\n"
    "-----END RSA PRIVATE KEY-----"
)
WIDE = "\uff14" + 15 * "\uff11"  # full-width digits
BASIC = base64.b64encode(b"alice:hunter2").decode()

FOUND = [
    ("email", "write to john.doe+tag@example.co.uk.", "john.doe+tag@example.co.uk"),
    ("email", "<john@example.com>", "john@example.com"),
    ("email", "'john@example.com'", "john@example.com"),
    ("email", "mailto:a@b.io?subject=x", "a@b.io"),
    ("email", "jörg@müller.de", "jörg@müller.de"),
    ("email", ".john@example.com-", "john@example.com"),
    ("phone", "call +49 151 23456789 now", "+49 151 23456789"),
    ("phone", "+44 (0)20 7946 0958", "+44 (0)20 7946 0958"),
    ("phone", "tel:+1-212-555-0187", "+1-212-555-0187"),
    ("phone", "+12125550187,", "+12125550187"),
    ("phone", "+351.912.345.678", "+351.912.345.678"),
    ("phone", "+1 212 555 0187 2024-05-11", "+1 212 555 0187"),
    ("phone", "+1 (555) 123-4567", "+1 (555) 123-4567"),
    ("phone", "write to +5215512345678", "+5215512345678"),
    ("phone", "+52 1 55 1234 5678", "+52 1 55 1234 5678"),
    ("phone", "+52 044 55 1234 5678", "+52 044 55 1234 5678"),
    ("phone", "+34 0 91 123 45 67", "+34 0 91 123 45 67"),
    ("card", "4111 1111 1111 1111", "4111 1111 1111 1111"),
    ("card", "4111-1111-1111-1111", "4111-1111-1111-1111"),
    ("card", "card=4111111111111111;", "4111111111111111"),
    ("card", "12 4111 1111 1111 1111", "4111 1111 1111 1111"),
    ("card", "1234 4111 1111 1111 1111", "4111 1111 1111 1111"),
    ("card", "amex 3782 822463 10005", "3782 822463 10005"),
    ("card", "5555555555554444", "5555555555554444"),
    ("card", "2223003122003222", "2223003122003222"),
    ("card", "6011111111111117", "6011111111111117"),
    ("card", "3530111333300000", "3530111333300000"),
    ("card", WIDE, WIDE),
    ("iban", "DE89370400440532013000", "DE89370400440532013000"),
    ("iban", "to GB82 WEST 1234 5698 7654 32 AND more", "GB82 WEST 1234 5698 7654 32"),
    ("iban", "fr1420041010050500013m02606", "fr1420041010050500013m02606"),
    ("iban", "NO93 8601 1117 947.", "NO93 8601 1117 947"),
    ("iban", "MA64 0115 1900 0001 2050 0053 4921", "MA64 0115 1900 0001 2050 0053 4921"),
    ("iban", "NO93-8601-1117-947", "NO93-8601-1117-947"),
    ("ip", "from 192.168.1.254: ok", "192.168.1.254"),
    ("ip", "[2001:db8::8a2e:370:7334]:443", "2001:db8::8a2e:370:7334"),
    ("ip", "::ffff:10.0.0.1", "::ffff:10.0.0.1"),
    ("us_ssn", "ssn 078-05-1120", "078-05-1120"),
    ("high_entropy", f"blob {RANDOM}", RANDOM),
    ("openai_key", f"OPENAI is {OPENAI}.", OPENAI),
    ("openai_key", f'"{"sk-" + RANDOM}"', "sk-" + RANDOM),
    ("anthropic_key", ANTHROPIC, ANTHROPIC),
    ("aws_key", f"id {AWS}", AWS),
    ("github_token", f"https://{GITHUB}@github.com/a/b", GITHUB),
    ("github_token", GITHUB_FINE, GITHUB_FINE),
    ("slack_token", SLACK, SLACK),
    ("slack_token", f"curl {SLACK_HOOK}", SLACK_HOOK),
    ("google_key", f"?k={GOOGLE}&x", GOOGLE),
    ("stripe_key", STRIPE, STRIPE),
    ("api_key", GITLAB, GITLAB),
    ("api_key", f"//registry/:_auth={NPM}", NPM),
    ("jwt", f"jwt {JWT}.", JWT),
    ("jwt", f"({UNSIGNED})", UNSIGNED),
    ("private_key", f"key:\n{PEM}\nend", PEM),
    ("private_key", f"{PEM[:80]}", PEM[:80]),
    ("private_key", json.dumps(PEM)[1:-1], json.dumps(PEM)[1:-1]),
    ("authorization", "Authorization: Bearer abc123def456.", "abc123def456"),
    ("authorization", f"-H 'authorization: Basic {BASIC}'", BASIC),
    ("authorization", f"sent Basic {BASIC}", BASIC),
    ("authorization", "{'Authorization': 'token 0123456789'}", "0123456789"),
    ("authorization", "bearer 0123456789abcdef", "0123456789abcdef"),
    ("url_password", "postgres://app:s3cr3t@db:5432/x", "s3cr3t"),
    ("url_password", "redis://:p@ss@localhost", "p@ss"),
    ("password", "password=hunter2", "hunter2"),
    ("password", "password: hunter2.", "hunter2"),
    ("password", "DB_PASSWORD='correct horse'", "correct horse"),
    ("password", '{"api_key": "abcdef"}', "abcdef"),
    ("password", r"{\"client_secret\": \"abcdef\"}", "abcdef"),
    ("password", "passwd := topsecret", "topsecret"),
    ("password", "\u0130\u0130 PassWord=HUNTER2", "HUNTER2"),
    ("password", "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI/K7MDENG"),
    ("password", "Server=x;Pwd=hunter2;Timeout=3", "hunter2"),
    ("password", "?access_token=abcdef&page=2", "abcdef"),
    ("password", "<password>hunter2</password>", "hunter2"),
    ("password", "config['password'] = 'hunter2'", "hunter2"),
    ("password", "password: str = 'hunter2'", "hunter2"),
    ("password", "X-Api-Key: 1234abcd", "1234abcd"),
]

LEFT = [
    ("email", "git@github.com:langchain-ai/langgraph.git"),
    ("email", "icon@2x.png"),
    ("email", "package@1.2.3"),
    ("email", "user@localhost"),
    ("email", "@decorator.method"),
    ("phone", "1 + 12345678"),
    ("phone", "2024-01-01T00:00:00+00:00"),
    ("phone", "+1 123"),
    ("phone", "+1 012 345 6789"),
    ("phone", "+999 12345678"),
    ("phone", "+47 222 255 551"),
    ("card", "4111 1111 1111 1112"),
    ("card", "0.4111111111111111"),
    ("card", "1234567890123452"),
    ("card", "a4111111111111111"),
    ("card", "41111111111111111111"),
    ("card", "1700000000000000000"),
    ("card", "123e4567-e89b-12d3-a456-426614174000"),
    ("iban", "DE89370400440532013001"),
    ("iban", "XX89370400440532013000"),
    ("iban", "DE8937040044053201300"),
    ("iban", "DE86ABCD00440532013000"),
    ("ip", "12:30:45"),
    ("ip", "1.2.3"),
    ("ip", "256.1.1.1"),
    ("ip", "std::vector"),
    ("us_ssn", "000-12-3456"),
    ("us_ssn", "2024-05-11-1234"),
    ("high_entropy", "0123456789abcdef0123456789abcdef01234567"),
    ("high_entropy", "ThisIsAVeryLongClassNameForATest"),
    ("openai_key", "sk-folding-cube-wrapper-container"),
    ("openai_key", "task-1234567890123456789012345"),
    ("aws_key", "AKIA"),
    ("github_token", "ghp_short"),
    ("google_key", "AIzaShort"),
    ("stripe_key", "pk" + "_live_" + RANDOM[:24]),
    ("jwt", "eyJhbGciOi.not.one"),
    ("jwt", f"{b64({'no': 'algorithm'})}.{b64({})}.x"),
    ("private_key", "look for -----BEGIN PRIVATE KEY----- in it; then go on"),
    ("private_key", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"),
    ("authorization", "Authorization: required"),
    ("authorization", 'curl -H "Authorization: Bearer $TOKEN"'),
    ("authorization", "the bearer of this letter is a friend"),
    ("authorization", "basic training and basic knowledge"),
    ("url_password", "http://localhost:8080/a@b"),
    ("url_password", "postgres://app:${DB_PASS}@db"),
    ("url_password", "https://example.com/x?a=b@c"),
    ("password", "password: required"),
    ("password", "def login(user: str, password: str) -> None"),
    ("password", "login(password=password)"),
    ("password", "password=getpass('Password: ')"),
    ("password", "password=os.environ['X']"),
    ("password", "password=self.password"),
    ("password", "password=${DB_PASSWORD}"),
    ("password", "password=********"),
    ("password", "password=None"),
    ("password", "max_tokens=4096"),
    ("password", "next_page_token: abc123"),
    ("password", "PWD=/home/alice"),
    ("password", "the secret of a good tea"),
]


def found_by(name: str, text: str) -> list[str]:
    return [text[one.start : one.end] for one in findings(text, detectors_of([name], ()))]


@pytest.mark.parametrize(("name", "text", "secret"), FOUND, ids=lambda value: str(value)[:30])
def test_a_secret_is_found_exactly(name: str, text: str, secret: str) -> None:
    """The match has no extra characters, because the tool gets the restored value."""
    assert found_by(name, text) == [secret]


@pytest.mark.parametrize(("name", "text"), LEFT, ids=lambda value: str(value)[:30])
def test_what_is_no_secret_is_left(name: str, text: str) -> None:
    """Text that only resembles a secret is not redacted, so that results stay useful."""
    assert found_by(name, text) == []


@pytest.mark.parametrize(("name", "text", "secret"), FOUND, ids=lambda value: str(value)[:30])
def test_a_secret_is_found_in_the_middle_of_long_text(name: str, text: str, secret: str) -> None:
    """A secret is found at any position, whatever stands beside it."""
    long = f"{'lorem ipsum. ' * 500}\n{text}\n{'dolor sit amet, ' * 500}"

    assert secret in found_by(name, long)


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "4", "1 ", "4111 ", "a@", "a@a.", "a.", "+1", "+49 151 ", "DE89 ", "::1 ", "1.", ": ", "aA1", "\\", "-"),
        *("+12345678 ", f"+99{13 * '-9'} ", f"+1{12 * ' 0'} ", "DE89 3704 0044 0532 0130 01 "),
        *("-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----\n", "eyJ", "eyJhbGciOi.", "sk-", "xoxb-"),
        *('password="', "password='", "password= ", "password\\\\", "<password>", "token", "secret: ", "'password': `"),
        *("a://", "a://a:", "http://a:", "bearer ", "bearer 0", "basic aaaaaaaa ", "authorization: "),
        *("<email:", "<email:000000000000>", "\n", "\x00", "\u00e9", "\ud800"),
    ],
    ids=repr,
)
@pytest.mark.exhaustive
def test_a_megabyte_of_hostile_text_is_searched_in_time(unit: str) -> None:
    """Every pattern needs linear time: a backtracking pattern would make this test hang."""
    text = unit * (1_000_000 // len(unit))

    findings(f"{text}@", detectors_of(ALL, ["needle"]))


def test_spans_that_overlap_become_one_of_the_longest_kind() -> None:
    """No part of a secret is left over when several detectors match it."""
    one, two, three = Detector("one", "abcd"), Detector("two", "cdefgh"), Detector("three", "gh")

    assert findings("xabcdefghx", [one, two, three]) == [Finding(1, 9, "two", 6)]


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_of_two_equal_findings_the_earlier_detector_names_the_kind(order: tuple[str, str]) -> None:
    """With equal matches the first detector wins, so that the output is deterministic."""
    (one,) = findings("abc", [Detector(name, "abc") for name in order])

    assert one.kind == order[0]


def test_a_detector_may_be_a_function_with_bad_manners() -> None:
    """Empty spans and spans outside the text are ignored."""
    careless = Detector("careless", lambda text: [(-5, 2), (3, 3), (5, 4), (4, len(text) + 9)])

    assert [(one.start, one.end) for one in findings("abcdef", [careless])] == [(0, 2), (4, 6)]


SPECIAL = 'p"w\\d\n& ü'


@pytest.mark.parametrize(
    "form",
    [
        SPECIAL,
        repr(SPECIAL),
        json.dumps(SPECIAL),
        json.dumps({"x": SPECIAL}, ensure_ascii=False),
        "p%22w%5Cd%0A%26%20%C3%BC",
        SPECIAL.encode().hex(),
        base64.b64encode(SPECIAL.encode()).decode(),
        base64.b64encode(f"user:{SPECIAL}".encode()).decode(),
        base64.urlsafe_b64encode(f"u:{SPECIAL}@x".encode()).decode(),
    ],
)
def test_a_literal_secret_is_found_in_its_encodings(form: str) -> None:
    """A configured secret often appears escaped or encoded."""
    assert list(literals([SPECIAL])(f"<<{form}>>"))


@given(secret=st.text(min_size=6, max_size=30), around=st.binary(max_size=7), after=st.binary(max_size=7))
@example(secret="\ud800aaaaa", around=b"", after=b"")
def test_a_literal_secret_is_found_inside_any_base64(secret: str, around: bytes, after: bytes) -> None:
    """The secret is found inside a base64 text, whatever is encoded before and after it."""
    raw = around + secret.encode("utf-8", "surrogatepass") + after

    assert list(literals([secret])(base64.b64encode(raw).decode()))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"detectors": ["emial"]}, "knows no 'emial'"),
        ({"detectors": "email"}, "takes a list"),
        ({"detectors": [7]}, "names or Detectors"),
        ({"detectors": ["email", Detector("email", "x")]}, "2 detectors named 'email'"),
        ({"secrets": "hunter2"}, "takes a list of strings"),
        ({"secrets": ["hunter2", "abc"]}, r"\[1\] has 3 characters"),
        ({"secrets": ["hunter2", None]}, r"\[1\] is not a string"),
        ({"reveal": "pay"}, "takes names of tools"),
        (
            {"reveal": {"pay": "card"}},
            r"takes names of arguments for 'pay', got 'card'; write reveal=\{'pay': \['card'\]\}",
        ),
        ({"reveal": 7}, "names of tools"),
        ({"key": b"short"}, "5 bytes"),
    ],
    ids=repr,
)
def test_a_middleware_that_makes_no_sense_is_refused(options: dict[str, Any], error: str) -> None:
    """The error comes at construction and names the argument, without the secret."""
    with pytest.raises((TypeError, ValueError), match=error) as caught:
        Redact(**options)

    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "Bad Name", "find": "x"}, ValueError),
        ({"name": "x" * 33, "find": "x"}, ValueError),
        ({"name": "ok", "find": "("}, ValueError),
        ({"name": "ok", "find": 7}, TypeError),
        ({"name": "ok", "find": "x", "keys": 7}, TypeError),
    ],
    ids=repr,
)
def test_a_detector_that_makes_no_sense_is_refused(options: dict[str, Any], error: type[Exception]) -> None:
    """The error comes at construction, not when the first secret passes."""
    with pytest.raises(error, match=r"Detector\("):
        Detector(**options)


def test_a_compiled_expression_may_be_given() -> None:
    """A compiled expression keeps its flags, and its group selects the secret."""
    detector = Detector("employee", re.compile(r"emp-(?P<secret>\d+)", re.IGNORECASE))

    assert findings("EMP-17", [detector]) == [Finding(4, 6, "employee", 2)]
