"""What tests/bench/slow_links/unequal_peers.py makes of its repeats."""

import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "slow_links"))
from unequal_peers import BY_TIME, TARGET, summary  # noqa: E402


def repeat(by_time, alone=(8, 2)):
    return {"sleep_milliseconds": 300, "shares_per_second_alone": list(alone),
            "shares_per_second": {BY_TIME: by_time, "sums every step": 4}}


class UnequalPeers(unittest.TestCase):
    def test_the_median_of_the_repeats_is_held_against_the_target(self):
        found = summary([repeat(9.5), repeat(2), repeat(9)])
        self.assertEqual(found["share_of_sum_of_speeds"], {BY_TIME: 0.9, "sums every step": 0.4})
        self.assertEqual(found["shares_per_second"][BY_TIME], 9)
        self.assertEqual(found["shares_per_second_alone"], [8, 2])
        self.assertEqual((found["repeats"], found["target"], found["holds"]), (3, TARGET, True))

    def test_the_target_can_be_missed(self):
        self.assertFalse(summary([repeat(9.5), repeat(8.9), repeat(8)])["holds"])

    def test_each_repeat_counts_with_its_own_speeds(self):
        found = summary([repeat(9), repeat(4.5, alone=(4, 1)), repeat(18, alone=(16, 4))])
        self.assertAlmostEqual(found["share_of_sum_of_speeds"][BY_TIME], 0.9)


if __name__ == "__main__":
    unittest.main()
