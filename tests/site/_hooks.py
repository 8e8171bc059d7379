"""Hooks of MkDocs: the navigation from the index, files outside `docs`, and files for models."""

import shutil
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

# `mkdocs` as a command does not have the folder of the project in its path.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tests import llms
from tests.site import _pages


def on_config(config: Any) -> Any:
    """Take the navigation from `docs/pages.md`, so that no page is listed twice, and name the version."""
    config.nav = _pages.navigation()
    config.site_name = f"{config.site_name} {_pages.version()}"  # in the header and in the title of each page
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
    """Adapt the links of a page, and set its rank in the search."""
    name = page.file.src_uri
    if name == "README.md":
        page.meta["hide"] = ["navigation", "toc"]
    page.meta["search"] = _pages.search_weight(name)
    if name == "repository/HISTORY.md":
        # Hundreds of old names would be found before the pages of today.
        page.meta["search"] = {"exclude": True}
    return _pages.for_the_site(markdown, name)


def on_post_build(config: Any) -> None:
    """Write the files for language models and the search worker, and remove the sitemap, which needs an address."""
    site = Path(config.site_dir)
    [worker] = site.glob("assets/javascripts/workers/search.*.js")
    worker.write_text((site / "javascripts" / "stop_words.js").read_text() + worker.read_text())
    (site / "llms-full.txt").write_text(llms.full())
    for _, page in llms.pages():
        shutil.copy(page, site / page.relative_to(llms.DOCS))
    for name in ("sitemap.xml", "sitemap.xml.gz"):
        (site / name).unlink(missing_ok=True)
