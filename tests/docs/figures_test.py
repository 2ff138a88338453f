#!/usr/bin/env python3
"""Pages of figures show just what their JSON says, and some of its numbers can be measured anew."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/framework"))
from figures import Figures, table  # noqa: E402


class Pages(unittest.TestCase):
    def test_show_the_figures_of_their_file(self):
        for name in ("chaos", "service"):
            with self.subTest(name):
                pages = ROOT / "docs/benchmarks"
                self.assertIn(table(pages / f"{name}.json"), (pages / f"{name}.md").read_text())


class SomeNumbers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "figures.json"
        with contextlib.redirect_stdout(io.StringIO()):
            figures = Figures(self.path)
            for number in (3, 1, 2):
                figures.below(number, "before", 1, 5, "s")
        said = json.loads(self.path.read_text())
        self.path.write_text(json.dumps({**said, "date": "2026-01-02"}))

    def measure(self, numbers, measured):
        with contextlib.redirect_stdout(io.StringIO()):
            figures = Figures(self.path, numbers)
            for number in measured:
                figures.below(number, "now", 9, 5, "s")
        return figures, json.loads(self.path.read_text())

    def test_replace_their_rows_alone(self):
        figures, said = self.measure([2], [2, 2])
        self.assertEqual([(row["number"], row["what"]) for row in said["rows"]],
                         [(1, "before"), (2, "now"), (2, "now"), (3, "before")])
        self.assertTrue(said["date"].startswith("2026-01-02 to "), said["date"])
        self.assertFalse(figures.all_hold())

    def test_stay_until_they_are_measured_and_are_never_doubled(self):
        _, said = self.measure([2, 3], [2])
        self.assertEqual([row["what"] for row in said["rows"]], ["before", "now", "before"])
        _, said = self.measure([2], [2, 3])
        self.assertEqual([row["what"] for row in said["rows"]], ["before", "now", "now"])

    def test_stay_where_their_part_does_not_run(self):
        with contextlib.redirect_stdout(io.StringIO()):
            figures = Figures(self.path, [2, 3], lambda row: row["number"] == 2)
            for number in (2, 3):
                figures.below(number, "now", 1, 5, "s")
        said = json.loads(self.path.read_text())
        self.assertEqual([(row["number"], row["what"]) for row in said["rows"]],
                         [(1, "before"), (2, "before"), (2, "now"), (3, "now")])

    def test_have_one_date_once_all_are_new(self):
        _, said = self.measure([1, 2, 3], [1, 2, 3])
        self.assertNotIn(" to ", said["date"])

    def test_are_all_when_none_is_named(self):
        _, said = self.measure([], [2])
        self.assertEqual([row["what"] for row in said["rows"]], ["now"])
        self.assertNotIn(" to ", said["date"])

    def test_of_another_machine_are_not_mixed_in(self):
        said = json.loads(self.path.read_text())
        self.path.write_text(json.dumps({**said, "machine": "abacus, 1 cores"}))
        with self.assertRaisesRegex(SystemExit, "measured on an abacus"):
            Figures(self.path, [2])


if __name__ == "__main__":
    unittest.main()
