"""The documentation site: hooks of MkDocs, the theme, a checker of links, and tests of the built pages."""
