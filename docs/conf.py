"""Sphinx's settings: `make docs` builds docs/_build/html from the Markdown files beside this one."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
project = "Headrace"
author = "Headrace contributors"
copyright = author
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files of the source tree, such as ../../benchmarks/README.md

html_theme = "furo"
html_title = "Headrace"
html_copy_source = False
