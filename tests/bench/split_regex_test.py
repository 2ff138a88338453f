"""The page of tests/bench/split_regex.py shows what its JSON says."""

import json
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import split_regex  # noqa: E402

PAGES = HERE.parents[1] / "docs/benchmarks"


class SplitRegex(unittest.TestCase):
    def test_the_page_is_that_of_the_run(self):
        report = json.loads((PAGES / "split_regex.json").read_text())
        self.assertEqual(split_regex.page(report), (PAGES / "split_regex.md").read_text())

    def test_a_pattern_without_hand_written_code_has_the_rate_of_the_library_alone(self):
        rows = [{"pattern": "a", "way": "hand-written", "bytes_per_second": 3e8},
                {"pattern": "a", "way": "PCRE2", "bytes_per_second": 2e8},
                {"pattern": "b", "way": "PCRE2", "bytes_per_second": 1e8}]
        page = split_regex.page({"cpu": "C", "date": "today", "text_bytes": 4_000_000, "rounds": 9,
                                 "rows": rows})
        self.assertIn("| a | 300 | 200 | 1.50 |\n| b |  | 100 |  |\n", page)


if __name__ == "__main__":
    unittest.main()
