"""Plans that learn from the runs that ended, as a user has them learn: real daemons, real jobs."""

import os
import unittest
import urllib.request

from weft_cluster import Cluster

ENDED = "weft_coord_plan_step_time_error_ratio_count"
MEMORY = "weft_coord_plan_memory_error_ratio_count"


class Calibration(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(workers=1)
        self.addCleanup(self.cluster.close)
        self.assertEqual(self.cluster.up().code, 0)

    def metric(self, name):
        page = urllib.request.urlopen(f"http://127.0.0.1:{self.cluster.metrics_port}/metrics")
        for line in page.read().decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        raise AssertionError(f"no metric {name}")

    def report(self, *options):
        result = self.cluster.weft("plan", "--calibrate", *options, "-o", "json")
        self.assertEqual(result.code, 0, result.err)
        return result.json()

    def reason(self):
        result = self.cluster.weft("plan", self.cluster.job(), "-o", "json")
        self.assertEqual(result.code, 0, result.err)
        return result.json()["candidates"][0]["reason"]

    def test_runs_are_kept_and_fitted(self):
        cluster = self.cluster
        self.assertIn("no run to learn from", cluster.weft("plan", "--calibrate").out)
        # Validation at the end only: each run tells the median of plain steps.
        runs = [("small", {}), ("longer", {"global_batch": 32}), ("half", {"precision": "bf16"}),
                ("wider", {"global_batch": 16})]
        for name, train in runs:
            path = cluster.job(name, **{"steps": 30, "eval_every_steps": 30, **train})
            result = cluster.weft("submit", path, "-f")
            self.assertEqual(result.code, 0, result.err + result.out)
        self.assertEqual(self.metric(ENDED), len(runs))
        self.assertEqual(self.metric(MEMORY), len(runs))

        tried = self.report("--dry-run")
        self.assertTrue(tried["dry_run"])
        machine, = tried["machines"]
        self.assertEqual(len(machine["runs"]), len(runs))
        for run in machine["runs"]:
            self.assertGreater(run["measured_seconds"], 0)
            self.assertGreater(run["planned_seconds"], 0)
            self.assertEqual(run["timed_steps"], 29)
            self.assertAlmostEqual(run["planned_memory_bytes"] / run["memory_bytes"], 1, delta=0.2,
                                   msg=run)
        self.assertNotIn("calibrated", self.reason())
        text = cluster.weft("plan", "--calibrate").out
        for words in ("median error", "after, runs not seen", "attention_share", "small-"):
            self.assertIn(words, text)

        # Whether so few short runs on a busy machine are any good is decided by the numbers.
        adopted = machine["adopted"]
        self.assertEqual("calibrated by 4 runs" in self.reason(), adopted)
        self.assertEqual(self.metric("weft_coord_plan_calibration_runs"), 4 if adopted else 0)
        for pid, _ in cluster.processes():
            os.kill(pid, 9)
        cluster.wait_for(lambda: not cluster.processes())
        self.assertEqual(cluster.up().code, 0)
        self.assertEqual("calibrated by 4 runs" in self.reason(), adopted)
        self.assertEqual(len(self.report("--dry-run")["machines"][0]["runs"]), len(runs))

        self.assertIn("defaults again", cluster.weft("plan", "--calibrate", "--reset").out)
        self.assertNotIn("calibrated", self.reason())
        self.assertEqual(len(self.report("--dry-run")["machines"][0]["runs"]), len(runs))

    def test_wrong_usage_is_refused(self):
        weft = self.cluster.weft
        self.assertEqual(weft("plan", self.cluster.job(), "--calibrate").code, 2)
        self.assertEqual(weft("plan", "--dry-run").code, 2)
        self.assertEqual(weft("plan", "--calibrate", "--budget", "1e20").code, 2)
        both = weft("plan", "--calibrate", "--dry-run", "--reset")
        self.assertEqual(both.code, 2)
        self.assertIn("nothing to reset", both.err)
        self.assertEqual(weft("plan", "--calibrate", "-o", "html").code, 2)


if __name__ == "__main__":
    unittest.main()
