"""Notes of a release: `python -m tests.release_notes 0.1.0` prints the section of the version in the changelog."""

import argparse
import re
from pathlib import Path

CHANGELOG = Path(__file__).parents[1] / "CHANGELOG.md"


def notes(version: str, changelog: str) -> str:
    """Return the section of a version without its heading; an empty text if there is none."""
    section = re.search(rf"^## {re.escape(version)}(?: - \d{{4}}-\d\d-\d\d)?\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return section[1].strip() if section else ""


def main() -> None:
    """Print the notes of a version; exit with an error if the changelog has none."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("version")
    version = parser.parse_args().version
    if not (section := notes(version, CHANGELOG.read_text())):
        parser.error(f"CHANGELOG.md has no section '## {version}'")
    print(section)


if __name__ == "__main__":
    main()
