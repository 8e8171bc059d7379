"""The detectors of `Redact`: a table of findings and non-findings, hostile text, and overlaps."""

import base64
import json
import re
from pathlib import Path
from string import Template
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from callboard.guards import DEFAULT_DETECTORS, Detector, Redact
from callboard.guards._redact._detectors import Finding, find_secrets, make_literal_finder
from callboard.guards._redact._redact import resolve_detectors

ALL = (*DEFAULT_DETECTORS, "ip")


def b64(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


# Written in parts, so that scanners of the repository do not report them as secrets.
RANDOM = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0"
PEM = (
    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEowIBAAKCAQEA1c7+9z5Pad7OejecsQ0b\nu3aozN3tihPmUHlm\n"
    "-----END RSA PRIVATE KEY-----"
)
PIECES = {
    "OPENAI": "sk-" + "proj-" + RANDOM,
    "OLD_OPENAI": "sk-" + RANDOM,
    "ANTHROPIC": "sk-" + "ant-api03-" + RANDOM,
    "AWS": "AK" + "IAIOSFODNN7EXAMPLE",
    "GITHUB": "gh" + "p_" + RANDOM[:36],
    "GITHUB_FINE": "github" + "_pat_" + RANDOM,
    "SLACK": "xo" + "xb-123456789012-" + RANDOM[:24],
    "SLACK_HOOK": "https://hooks.slack" + ".com/services/T00000000/B00000000/" + RANDOM[:24],
    "GOOGLE": "AI" + "za" + RANDOM[:35],
    "STRIPE": "sk" + "_live_" + RANDOM[:24],
    "PUBLIC_STRIPE": "pk" + "_live_" + RANDOM[:24],
    "GITLAB": "gl" + "pat-" + RANDOM[:20],
    "NPM": "np" + "m_" + RANDOM[:36],
    "JWT": f"{b64({'alg': 'HS256', 'typ': 'JWT'})}.{b64({'sub': '1234567890'})}.{RANDOM}",
    "UNSIGNED": f"{b64({'alg': 'none', 'typ': 'JWT'})}.{b64({'sub': '1234567890'})}.",
    "NO_ALGORITHM": f"{b64({'no': 'algorithm'})}.{b64({})}.x",
    "PEM": PEM,
    "PEM_LINES": json.dumps(PEM)[1:-1],
    "PEM_START": PEM[:80],
    "BASIC": base64.b64encode(b"alice:hunter2").decode(),
    "WIDE": "\uff14" + 15 * "\uff11",  # full-width digits
    "RANDOM": RANDOM,
}
"""Parts of the corpus that have the form of real secrets."""


def cases(*fields: str) -> list[Any]:
    """Return the cases of the corpus that have these fields and no others."""
    lines = (Path(__file__).parent / "corpus" / "detectors.jsonl").read_text().splitlines()
    rows = [case for case in map(json.loads, lines) if {*case} == {*fields}]
    return [tuple(Template(case[field]).safe_substitute(PIECES) for field in fields) for case in rows]


FOUND = cases("kind", "text", "secret")
LEFT = cases("kind", "text")


def test_the_corpus_is_large() -> None:
    assert (len(FOUND) >= 75, len(LEFT) >= 56) == (True, True)
    assert {kind for kind, *_ in [*FOUND, *LEFT]} == {*ALL}


def secrets_in(name: str, text: str) -> list[str]:
    return [text[finding.start : finding.end] for finding in find_secrets(text, resolve_detectors([name], ()))]


@pytest.mark.parametrize(("name", "text", "secret"), FOUND, ids=lambda value: str(value)[:30])
def test_a_secret_is_found_exactly(name: str, text: str, secret: str) -> None:
    """The match has no extra characters, because the tool gets the restored value; also in the middle of long text."""
    assert secrets_in(name, text) == [secret]
    before, after = "lorem ipsum. " * 2000, "dolor sit amet, " * 500
    # Texts are searched in pieces of these lengths.
    for piece in (4_096, 10_000, 18_000):
        assert secret in secrets_in(name, f"{before[: piece - len(text) // 2 - 1]}\n{text}\n{after}")


@pytest.mark.parametrize(
    ("name", "secret"),
    [("anthropic_key", f"sk-ant-{RANDOM * 500}"), ("jwt", f"{b64({'alg': 'none'})}.{RANDOM * 2000}.{RANDOM}")],
)
def test_a_secret_of_any_length_is_found_as_a_whole(name: str, secret: str) -> None:
    """What is left of a secret is a secret, too."""
    assert secrets_in(name, f"{'lorem ipsum. ' * 400} {secret} dolor") == [secret]


@pytest.mark.parametrize(("name", "text"), LEFT, ids=lambda value: str(value)[:30])
def test_what_is_no_secret_is_left(name: str, text: str) -> None:
    """Text that only resembles a secret is not redacted, so that results stay useful."""
    assert secrets_in(name, text) == []


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
    find_secrets(f"{text}@", resolve_detectors(ALL, ["needle"]))


def test_spans_that_overlap_become_one_of_the_longest_kind() -> None:
    """No part of a secret is left over when several detectors match it."""
    first, second, third = Detector("one", "abcd"), Detector("two", "cdefgh"), Detector("three", "gh")
    assert find_secrets("xabcdefghx", [first, second, third]) == [Finding(1, 9, "two", 6)]


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_of_two_equal_findings_the_earlier_detector_names_the_kind(order: tuple[str, str]) -> None:
    """With equal matches the first detector wins, so that the output is deterministic."""
    (finding,) = find_secrets("abc", [Detector(name, "abc") for name in order])
    assert finding.kind == order[0]


def test_a_detector_may_be_a_function_with_bad_manners() -> None:
    """Empty spans and spans outside the text are ignored."""
    careless = Detector("careless", lambda text: [(-5, 2), (3, 3), (5, 4), (4, len(text) + 9)])
    assert [(finding.start, finding.end) for finding in find_secrets("abcdef", [careless])] == [(0, 2), (4, 6)]


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
    assert list(make_literal_finder([SPECIAL])(f"<<{form}>>"))


@given(secret=st.text(min_size=6, max_size=30), around=st.binary(max_size=7), after=st.binary(max_size=7))
@example(secret="\ud800aaaaa", around=b"", after=b"")
def test_a_literal_secret_is_found_inside_any_base64(secret: str, around: bytes, after: bytes) -> None:
    raw = around + secret.encode("utf-8", "surrogatepass") + after
    assert list(make_literal_finder([secret])(base64.b64encode(raw).decode()))


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
    assert find_secrets("EMP-17", [detector]) == [Finding(4, 6, "employee", 2)]
