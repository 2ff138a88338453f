"""The bookkeeping of tests/bench/sub_networks.py, with a stand-in for weft-trainer."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.dont_write_bytecode = True
import sub_networks  # noqa: E402

# A step of a sub-network takes half as long. Runs of 7 steps fail.
STAND_IN = """#!/usr/bin/env python3
import json, pathlib, sys
spec = json.loads(pathlib.Path(sys.argv[2]).read_text())
train = spec["job"]["train"]
if train["steps"] == 7:
    sys.exit("out of memory")
if spec["rank"] == 0:
    run = pathlib.Path(spec["run_dir"])
    run.mkdir()
    seconds = spec["job"]["model"]["width"] * (0.5 if train["local_sub_networks"] else 1.0)
    (run / "summary.json").write_text(json.dumps({"median_step_seconds": seconds}))
"""


class SubNetworks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.trainer = self.folder / "trainer"
        self.trainer.write_text(STAND_IN)
        self.trainer.chmod(0o755)

    def test_both_jobs_are_the_example_and_differ_in_the_flag_alone(self):
        job = sub_networks.example()
        width = job["model"]["width"]
        plain, narrow = (sub_networks.job_of(job, width, 20, flag) for flag in (False, True))
        self.assertNotEqual(plain, narrow)
        plain["train"]["local_sub_networks"] = True
        self.assertEqual(plain, narrow)
        self.assertEqual(plain["model"], job["model"])
        self.assertTrue(pathlib.Path(plain["data"]["train"][0]).exists())
        wide = sub_networks.job_of(job, 2 * width, 20, True)["model"]
        self.assertEqual(wide["heads"], 2 * job["model"]["heads"])

    def test_rows_are_medians_of_rounds_and_of_their_ratios(self):
        row = sub_networks.row_of(64, [1.0, 2.0, 4.0], [0.5, 0.8, 3.0])
        self.assertEqual(row, {"width": 64, "plain_step_seconds": 2.0,
                               "sub_networks_step_seconds": 0.8, "ratio": 0.5})

    def test_runs_end_in_a_table_and_a_file(self):
        shown, report = io.StringIO(), self.folder / "report.json"
        with contextlib.redirect_stdout(shown):
            sub_networks.main(["--trainer", str(self.trainer), "--rounds", "2", "--json",
                               str(report), "--widths", "128", "256"])
        rows = json.loads(report.read_text())["rows"]
        self.assertEqual([row["plain_step_seconds"] for row in rows], [128, 256])
        self.assertEqual([row["ratio"] for row in rows], [0.5, 0.5])
        self.assertIn("| 128 | 128.0000 | 64.0000 | 0.50 |", shown.getvalue())

    def test_a_rank_that_fails_ends_the_measurement(self):
        with self.assertRaisesRegex(SystemExit, "out of memory"):
            sub_networks.main(["--trainer", str(self.trainer), "--steps", "7"])


if __name__ == "__main__":
    unittest.main()
