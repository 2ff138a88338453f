"""The targets and the page of tests/bench/scheduler."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("scheduler_script", str(HERE / "scheduler"))
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("scheduler_script", loader))
loader.exec_module(script)

POLICIES = [*script.BASELINES, script.STRONGEST, "weft_fixed", "weft"]


def row(cluster, policy, mean, **others):
    return {"cluster": cluster, "policy": policy, "mean_completion_seconds": mean,
            "p99_completion_seconds": 7200, "most_completion_seconds": 9000, "mean_slowdown": 1,
            "p99_slowdown": 2, "max_slowdown": 3, "makespan_seconds": 86400, "preemptions": 1,
            "resizes": 2, "lost_gpu_seconds": 3600, **others}


def measured(ours, **others):
    """Seven clusters where all other policies take 1000 s and ours as many as it says."""
    rows = [row(cluster, policy, mean if policy == "weft" else 1000,
                **(others if policy == "weft" else {}))
            for cluster, mean in zip(script.CLUSTERS, ours) for policy in POLICIES]
    data = {"date": "today", "machine": "a CPU", "rows": rows, "curve": {"1": 1.0},
            "passes": [{"pass": "full", "active": 0, "starts": 1, "preemptions": 0,
                        "plans_asked_for": 1, "processor_seconds": 0.15}]}
    data["targets"] = script.targets(data)
    return data


def holds(data):
    return [target["holds"] for target in data["targets"]]


class Scheduler(unittest.TestCase):
    def test_all_targets_can_be_reached(self):
        self.assertEqual(holds(measured([900] * 5 + [1000] * 2)), [True] * 5)

    def test_each_target_can_be_missed(self):
        self.assertEqual(holds(measured([900] * 4 + [901] * 3)), [True, False, True, True, True])
        self.assertEqual(holds(measured([900] * 6 + [1001])), [False, True, False, True, True])
        starving = measured([900] * 7, max_slowdown=4)
        self.assertEqual(holds(starving), [True, True, True, False, True])
        slow = measured([900] * 7)
        slow["passes"][0]["processor_seconds"] = 0.2
        self.assertEqual([target["holds"] for target in script.targets(slow)],
                         [True, True, True, True, False])

    def test_the_page_says_where_and_when_and_what_was_missed(self):
        data = measured([900] * 7, p99_completion_seconds=7201)
        page = script.page(data)
        self.assertIn("On an a CPU, today:", page)
        self.assertIn("| 5 | longest pass over 100,000 jobs on 10,000 GPUs | 150 ms | < 200 ms | holds |",
                      page)
        self.assertIn("above that of `rubick` in " + ", ".join(script.CLUSTERS), page)
        self.assertIn("above that of `fifo` in no cluster", page)
        self.assertIn("| ee9e8c | 0.3 | 0.3 | 0.3 | 0.2 | +10 % | +10 % |", page)
        data["targets"][0]["holds"] = False
        self.assertIn("| missed |", script.page(data))

    def test_a_file_that_no_run_wrote_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "scheduler.json"
            with self.assertRaisesRegex(ValueError, "read .*scheduler.json.*hint: --trace"):
                script.stored(path)
            for text, missing in (("not JSON", "read "), ("[]", "has no rows, curve, passes, targets"),
                                  ('{"rows": [], "curve": {}, "passes": []}', "has no targets: ")):
                path.write_text(text)
                with self.assertRaisesRegex(ValueError, missing):
                    script.stored(path)
            path.write_text(json.dumps(measured([900] * 7)))
            self.assertEqual(len(script.stored(path)["targets"]), 5)


if __name__ == "__main__":
    unittest.main()
