"""Badge of the README that names what `.ci/run` checks: `python -m tests.badge` writes `docs/checks.svg`."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BADGE = ROOT / "docs" / "checks.svg"
LABEL = ".ci/run checks"
_CHARACTER, _MARGIN, _HEIGHT = 6.2, 8, 20
"""Width of a character, margin and height, in pixels."""


def checks() -> str:
    """Return what `.ci/run` checks, from its commands and from the classifiers in `pyproject.toml`."""
    script = (ROOT / ".ci" / "run").read_text()
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    backends = [name for name in ("asyncio", "trio") if f"framework :: {name}" in map(str.lower, classifiers)]
    tried = re.findall(
        r"\b3\.\d+\b", " ".join(re.findall(r"^share lowest .*|^for version in .*", script, re.MULTILINE))
    )
    pythons = [
        match[1]
        for classifier in classifiers
        if (match := re.search(r":: (3\.\d+)$", classifier)) and match[1] in tried
    ]
    suites = re.search(r"-m tests\.suites((?:[^\n]*\\\n)*[^\n]*)", script)
    assert suites is not None
    projects = [name for name in ("LangGraph", "LangChain") if name.lower() in suites[1].split()]
    return f"{' + '.join(backends)}, Python {pythons[0]}-{pythons[-1]}, suites of {' + '.join(projects)}"


def svg() -> str:
    """Return the badge."""
    label_width, checks_width = (len(text) * _CHARACTER + 2 * _MARGIN for text in (LABEL, checks()))
    texts = "".join(
        f'<text x="{x:g}" y="14" textLength="{len(text) * _CHARACTER:g}">{text}</text>'
        for x, text in ((_MARGIN, LABEL), (label_width + _MARGIN, checks()))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{label_width + checks_width:g}" height="{_HEIGHT}" role="img">'
        f"<title>{LABEL}: {checks()}</title>"
        f'<rect width="{label_width:g}" height="{_HEIGHT}" fill="#3a424d"/>'
        f'<rect x="{label_width:g}" width="{checks_width:g}" height="{_HEIGHT}" fill="#1a5fb4"/>'
        f'<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{texts}</g></svg>\n'
    )


if __name__ == "__main__":
    BADGE.write_text(svg())
