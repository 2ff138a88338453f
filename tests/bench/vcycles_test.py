"""What tests/bench/own_runs/vcycles.py says of plans that are off, and when it fails."""

import contextlib
import io
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "own_runs"))
sys.dont_write_bytecode = True
import vcycles  # noqa: E402


def row(planned, taught, measured):
    parts = {"starts": 1, "useful": measured - 1, "checkpoints": 0}
    return {"name": "cycle", "how": "fp32, 1 data", "phases": "2 of 2 x 8", "steps": 2,
            "planned_seconds": planned, "planned_phases": [planned - 10, 10],
            "taught_seconds": taught, "taught_phases": [taught - 10, 10], "taught_parts": parts,
            "measured_seconds": measured, "measured_parts": parts,
            "measured_phases": [measured - 8, 8]}


class VCycles(unittest.TestCase):
    def test_a_total_that_is_off_by_more_than_12_percent_is_missed(self):
        self.assertEqual(vcycles.missed([row(89, 111, 100), row(111, 89, 100)]), [])
        self.assertEqual(vcycles.missed([row(87, 100, 100)]), ["cycle: planned -13.0 %"])
        self.assertEqual(vcycles.missed([row(100, 100, 100), row(100, 113, 100)]),
                         ["cycle: planned, taught +13.0 %"])

    def test_tables_have_the_error_of_the_total_and_of_each_phase(self):
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            vcycles.show([row(110, 90, 100)])
        lines = text.getvalue().splitlines()
        self.assertIn("| cycle | fp32, 1 data | 2 of 2 x 8 | 2 | 110.0 s | +10.0 % | 90.0 s | -10.0 % "
                      "| 100.0 s |", lines)
        self.assertIn("| cycle | 1 | 100.0 s | +8.7 % | 80.0 s | -13.0 % | 92.0 s |", lines)
        self.assertIn("| cycle | 2 | 10.0 s | +25.0 % | 10.0 s | +25.0 % | 8.0 s |", lines)

    def test_a_phase_has_the_time_of_all_its_attempts(self):
        attempts = [(0, 5, "COMPLETED"), (6, 8, "RANK_DIED"), (9, 12, "COMPLETED"),
                    (12, 13, "COMPLETED")]
        run = {"attempts": [{"started_at": start, "ended_at": end, "reason": reason}
                            for start, end, reason in attempts]}
        self.assertEqual(vcycles.measured_phases(run), [5, 5, 1])


if __name__ == "__main__":
    unittest.main()
