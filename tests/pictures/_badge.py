"""Badge of the README: Python versions and event loops with which `.ci/run` tests callboard."""

import tomllib

from tests.pictures._pages import ROOT

_BOX = '<rect x="{x}" width="{width}" height="20" fill="{fill}"/>'
_TEXT = '<text x="{middle:g}" y="14" textLength="{length}">{text}</text>'


def versions() -> list[str]:
    """Return the Python versions for which `pyproject.toml` has a classifier."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    found = [one.removeprefix("Programming Language :: Python :: ") for one in classifiers]
    return [version for version in found if version.startswith("3.")]


def badge() -> str:
    """Return the badge as SVG."""
    parts = (("tested with", "#555"), (f"Python {' | '.join(versions())}", "#14744d"), ("asyncio + trio", "#5f3fb8"))
    drawn, x = "", 0
    for text, fill in parts:
        length = round(5.9 * len(text))
        width = length + 12
        drawn += _BOX.format(x=x, width=width, fill=fill)
        drawn += _TEXT.format(middle=x + width / 2, length=length, text=text) + "\n"
        x += width
    title = " ".join(text for text, _ in parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x}" height="20" role="img"><title>{title}</title>\n'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">\n'
        f"{drawn}</g></svg>\n"
    )
