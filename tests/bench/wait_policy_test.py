"""The bookkeeping of tests/bench/wait_policy.py, and that its page shows what its JSON says."""

import json
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import wait_policy  # noqa: E402

PAGES = HERE.parents[1] / "docs/benchmarks"


class WaitPolicy(unittest.TestCase):
    def test_the_page_is_that_of_the_run(self):
        report = json.loads((PAGES / "wait_policy.json").read_text())
        self.assertEqual(wait_policy.page(report), (PAGES / "wait_policy.md").read_text())

    def test_the_run_has_the_count_that_programs_set(self):
        report = json.loads((PAGES / "wait_policy.json").read_text())
        self.assertEqual(report["spin_count"], wait_policy.spin_count())

    def test_ratios_are_of_the_same_round_and_a_stopped_run_takes_more(self):
        turns = {"ours": [1.0, 2.0, 4.0], "default": [3.0, 9.0, 9.0], "passive": [2.0, 4.0, 8.0]}
        rows = {row["policy"]: row for row in
                wait_policy.rows_of(wait_policy.SIZES[0], 2, turns, limit=9.0)}
        self.assertEqual(rows["passive"]["ratio_to_ours"], 2)
        self.assertEqual(wait_policy.cell(rows["passive"]), "4.00 (2.00)")
        self.assertEqual(rows["default"]["ratio_to_ours"], 3)
        self.assertEqual(wait_policy.cell(rows["default"]), "> 9.00 (> 3.00)")


if __name__ == "__main__":
    unittest.main()
