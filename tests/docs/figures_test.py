#!/usr/bin/env python3
"""Pages of figures show just what their JSON says."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/framework"))
from figures import table  # noqa: E402


class Pages(unittest.TestCase):
    def test_show_the_figures_of_their_file(self):
        for name in ("chaos", "service"):
            with self.subTest(name):
                pages = ROOT / "docs/benchmarks"
                self.assertIn(table(pages / f"{name}.json"), (pages / f"{name}.md").read_text())


if __name__ == "__main__":
    unittest.main()
