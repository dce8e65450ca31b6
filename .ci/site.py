"""Hooks of mkdocs: files outside docs that pages link to become pages of the site, as they are."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(\]\()([^)#:\s]+)((?:#[^)]*)?\))")
LANGUAGE = {".py": "python", ".toml": "toml", ".sh": "bash", ".yaml": "yaml", ".yml": "yaml"}


def outside(link: str, page: str) -> Path | None:
    """Where a link of a page leads, from the top; None for what is in docs."""
    found = Path(posixpath.normpath(f"docs/{posixpath.dirname(page)}/{link}"))
    return None if found.is_relative_to("docs") else found


def shown(path: Path) -> str:
    """A file as one block of code, a folder as the list of what is in it."""
    if (ROOT / path).is_dir():
        names = sorted(each.name for each in (ROOT / path).iterdir() if each.name[0] not in "._")
        return f"# {path}\n\n" + "".join(f"- `{name}`\n" for name in names)
    text, language = (ROOT / path).read_text(encoding="utf-8"), LANGUAGE.get(path.suffix, "text")
    fence = "`" * max(3, 1 + max(map(len, re.findall("`{3,}", text)), default=0))
    return f"# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"


def on_files(files: Any, config: Any) -> Any:
    """Add a page for everything outside docs that a page links to."""
    pages = [each for each in files if each.src_uri.endswith(".md")]
    wanted = {
        path
        for page in pages
        for _, link, _ in LINK.findall(page.content_string)
        if (path := outside(link, page.src_uri)) and (ROOT / path).exists()
    }
    for path in sorted(wanted):
        page = File.generated(config, f"source/{path}.md", content=shown(path))
        page.inclusion = page.inclusion.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links out of docs to those pages."""

    def lead(match: re.Match[str]) -> str:
        path = outside(match[2], page.file.src_uri)
        if path is None or page.file.src_uri.startswith("source/"):
            return match[0]
        here = posixpath.dirname(page.file.src_uri) or "."
        return "](" + posixpath.relpath(f"source/{path}.md", here) + ")"

    return LINK.sub(lead, markdown)
