"""What mkdocs.yml adds to the pages of docs/: the documents at the root as pages, and lists in docstrings.

It has no command of its own: `make site` builds the site. A link names a file as in the repository, from a document at
the root (docs/gpu.md) or from a page (../CONTRIBUTING.md): so it works there, and is a link between pages here.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from griffe import Extension
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
DOCUMENTS = {page: document for document, page in AT_ROOT.items()}
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
# "name: what it is" or "one, two: what they are" where a line or sentence of a docstring begins.
ITEM = re.compile(r"(?:^|(?<=\. ))([a-z]\w*(?:, \w+)*): ", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents at the root."""
    for document, page in AT_ROOT.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository as links of the site."""
    here = page.file.src_uri
    folder = posixpath.dirname(DOCUMENTS.get(here, f"docs/{here}"))

    def moved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        target = AT_ROOT.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(target, posixpath.dirname(here) or ".")

    return LINK.sub(moved, markdown)


class Lists(Extension):
    """Shows what docstrings say of single names as a list."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Of every class and function."""
        if obj.docstring is not None:
            obj.docstring.value = ITEM.sub(r"\n\n- `\1`: ", obj.docstring.value)
