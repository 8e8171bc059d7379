"""Public host names end in a top-level domain of the Internet, in Unicode or ASCII spelling."""

from pathlib import Path

import idna
import pytest

from callboard.guards import Url

# The last labels of the ICANN part of the Public Suffix List (publicsuffix.org, MPL 2.0), version 2026-10-22, as they
# appear there, without `arpa` and `onion`, which have no public web sites.
LABELS = Path(__file__).with_name("public_suffixes.txt").read_text(encoding="utf-8").split()


def spellings() -> list[str]:
    ascii_names = [label if label.isascii() else idna.encode(label).decode() for label in LABELS]
    return [*dict.fromkeys([*LABELS, *ascii_names])]


def test_every_top_level_domain_of_the_public_suffix_list_is_public_in_both_spellings() -> None:
    """Names in other scripts have an ASCII form with hyphens, which must be accepted, too."""
    domains = spellings()
    assert len(LABELS) == 1446
    assert sum(name.startswith("xn--") for name in domains) == sum(not name.isascii() for name in domains) > 140
    urls = {name: Url().check(f"https://example.{name}/") for name in domains}
    for name, url in urls.items():
        assert url == f"https://example.{name if name.isascii() else idna.encode(name).decode()}/"


@pytest.mark.parametrize(
    "host", ["db.xn", "db.example.xn", "kubernetes.default.svc", "printer.local", "db.internal", "a.onion", "1.arpa"]
)
def test_a_name_under_no_top_level_domain_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="not a public one"):
        Url().check(f"https://{host}/")


def test_every_label_that_begins_no_top_level_domain_is_refused() -> None:
    """Names with hyphens must be kept whole: their pieces are no top-level domains."""
    whole_names = set(spellings())
    pieces = {
        piece for name in whole_names if name.isascii() for piece in (name.split("-")[0], name.rpartition("-")[2])
    }
    for piece in sorted(pieces - whole_names - {""}):
        with pytest.raises(ValueError, match="host"):
            Url().check(f"https://db.{piece}/")
