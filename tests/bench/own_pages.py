"""The text of the project's own pages: English, and code and tables, which every checkout has."""

import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def text_of_pages():
    return "\n".join(page.read_text() for page in sorted((ROOT / "docs").rglob("*.md")))
