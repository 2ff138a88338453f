"""deploy/quickstart.sh: how long it trains, with a stand-in for `weft` that notes the job."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]

WEFT = """#!/usr/bin/env python3
import json, shutil, sys
if sys.argv[1] == "plan" and "json" in sys.argv:
    prediction = {{"step_seconds": {step_seconds}}}
    print(json.dumps({{"candidates": [{{"plan": {{"prediction": prediction}}}}]}}))
elif sys.argv[1:3] == ["job", "submit"]:
    shutil.copy(sys.argv[3], "{submitted}")
    print("job/quickstart-1")
elif sys.argv[1:3] == ["job", "get"]:
    summary = {{"validation_loss_nats": {loss}, "unigram_entropy_nats": 6.0,
                "tokens_per_second": 1000.0, "parameters": 14000000}}
    print(json.dumps({{"summary_json": json.dumps(summary)}}))
"""


class QuickStart(unittest.TestCase):
    def run_script(self, step_seconds, *options, loss=5.0):
        """Its exit status, what it printed, and the job that it submitted."""
        with tempfile.TemporaryDirectory() as name:
            root = pathlib.Path(name)
            submitted = root / "submitted.yaml"
            text = root / "text"
            text.write_text("In the beginning")
            programs = {
                "deploy/install.sh": "#!/bin/sh\n",
                "build/release/bin/cmake": "#!/bin/sh\n",
                "build/release/bin/weft": WEFT.format(step_seconds=step_seconds, loss=loss,
                                                      submitted=submitted),
            }
            for path, content in programs.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(content)
                (root / path).chmod(0o755)
            shutil.copy(ROOT / "deploy/quickstart.sh", root / "deploy")
            path = f"{root}/build/release/bin:{os.environ['PATH']}"
            done = subprocess.run(
                [root / "deploy/quickstart.sh", "--data", text, "--summary", root / "summary.json",
                 *options], env={**os.environ, "PATH": path}, text=True, capture_output=True)
            self.assertIn("6/6", done.stdout, done.stderr)
            summary = json.loads((root / "summary.json").read_text())
            self.assertTrue(summary["checkpoint_verified"])
            return done.returncode, done.stdout, yaml.safe_load(submitted.read_text())

    def test_it_trains_about_three_minutes_within_limits(self):
        for step_seconds, steps, said in ((0.25, 300, "300 steps, 75 s"),
                                          (1.2, 150, "150 steps, 180 s"),
                                          (5.1, 60, "60 steps, 306 s")):
            status, output, job = self.run_script(step_seconds)
            self.assertEqual(status, 0)
            self.assertEqual(job["train"]["steps"], steps)
            self.assertEqual(job["train"]["eval_every_steps"], steps // 4)
            self.assertEqual(job["schedule"]["warmup_steps"], steps // 10)
            self.assertIn(f"{said} by the plan; --steps N for another number\n", output)

    def test_a_number_of_steps_that_is_asked_for_holds(self):
        for steps in (40, 2000):
            _, output, job = self.run_script(1.2, "--steps", str(steps))
            self.assertEqual(job["train"]["steps"], steps)
            self.assertNotIn("by the plan", output)

    def test_a_model_that_has_learned_nothing_fails(self):
        self.assertEqual(self.run_script(1.2, loss=6.1)[0], 1)


if __name__ == "__main__":
    unittest.main()
