"""Hooks of MkDocs: the navigation from the index, files outside `docs`, the API reference, and files for models."""

import posixpath
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

# `mkdocs` as a command does not have the folder of the project in its path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import llms
from tests.site import _pages

_DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def on_config(config: Any) -> Any:
    """Take the navigation from `docs/README.md`, so that no page is listed twice."""
    config.nav = _pages.navigation()
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the files outside `docs` that pages link to."""
    listed = str(config.nav)
    for page, path in _pages.outside_pages().items():
        inclusion = InclusionLevel.INCLUDED if f"'{page}'" in listed else InclusionLevel.NOT_IN_NAV
        if page.endswith(".md"):
            files.append(File.generated(config, page, content=_pages.text_of(path), inclusion=inclusion))
        else:
            files.append(File.generated(config, page, abs_src_path=str(_pages.ROOT / path), inclusion=inclusion))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt the links of a page, and write the directives of a page of the API reference."""
    name = page.file.src_uri
    if name == "README.md":
        page.meta["hide"] = ["navigation", "toc"]
    if posixpath.dirname(name) == "reference/python":
        markdown = _DIRECTIVE.sub(lambda found: _pages.directives(found[1]), markdown)
    return _pages.for_the_site(markdown, name)


def on_post_build(config: Any) -> None:
    """Write the files for language models, and remove the sitemap, which needs the address of the site."""
    site = Path(config.site_dir)
    (site / "llms-full.txt").write_text(llms.full())
    for _, page in llms.pages():
        shutil.copy(page, site / page.relative_to(llms.DOCS))
    for name in ("sitemap.xml", "sitemap.xml.gz"):
        (site / name).unlink(missing_ok=True)
