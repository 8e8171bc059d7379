"""The badge of the README is true."""

from tests.badge import BADGE, LABEL, ROOT, checks, svg


def test_the_badge_is_up_to_date() -> None:
    """`python -m tests.badge` makes it; its text is also that of the README, for readers without pictures."""
    assert BADGE.read_text() == svg()
    assert f"![{LABEL}: {checks()}](docs/checks.svg)\n" in (ROOT / "README.md").read_text()
