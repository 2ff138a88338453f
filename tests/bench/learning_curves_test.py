"""The bookkeeping of tests/bench/learning_curves, with a stand-in for `weft train`."""

import array
import json
import math
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from curves import gpt, relatives, sparse  # noqa: E402
from curves.runs import (  # noqa: E402
    EXPORTED, MeasurementError, Record, Run, Runner, final_loss, seconds_of, thinned)

STAND_IN = """#!/usr/bin/env python3
import json, pathlib, sys
job, output = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[4])
with open("{calls}", "a") as file:
    file.write((sys.argv[1] if sys.argv[1] == "export" else job.parent.name) + "\\n")
output.mkdir()
if sys.argv[1] == "export":
    sys.exit("unwilling" in (job.parent / "job.yaml").read_text())
steps = [{{"step": 1, "loss": 3.0}}, {{"step": 2, "loss": None}}]
(output / "loss.jsonl").write_text("".join(json.dumps(step) + "\\n" for step in steps))
print("I step 2 validation loss 2.25 accuracy 87.5 % core_eval_loss_nats 2.5")
if "unstable" in job.read_text():
    sys.exit("error: the training diverged: weights are not finite")
if "wrong" in job.read_text():
    sys.exit("error: no such field")
(output / "summary.json").write_text(json.dumps({{"validation_loss_nats": 2.25, "seconds": 1,
                                                    "training_flops": 3, "phases": [],
                                                    "median_step_seconds": 0.5}}))
"""


class LearningCurves(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.calls = self.folder / "calls"
        weft = self.folder / "weft"
        weft.write_text(STAND_IN.format(calls=self.calls))
        weft.chmod(0o755)
        self.data = self.folder / "text"
        self.data.write_text("a")
        self.runner = Runner(weft, self.folder, parallel=2)

    def job(self, **model):
        return {"model": model, "data": {"train": [str(self.data)]}}

    def test_a_run_is_repeated_only_when_its_job_or_data_change(self):
        first = self.runner.run_all([Run("a", self.job(layers=1))])["a"]
        self.assertEqual(first["training"], [[1, 3.0]])
        self.assertEqual(first["validation"], [[2, 2.25]])
        self.assertEqual(first["accuracy"], [[2, 87.5]])
        self.assertEqual(first["metrics"], {"core_eval_loss_nats": [[2, 2.5]]})
        self.assertEqual(final_loss(first), 2.25)
        self.runner.run_all([Run("a", self.job(layers=1))])
        self.assertEqual(self.calls.read_text().split(), ["a"])
        self.runner.run_all([Run("a", self.job(layers=2))])
        self.data.write_text("b")
        Runner(self.runner.weft, self.folder, 1).run_all([Run("a", self.job(layers=2))])
        self.assertEqual(self.calls.read_text().split(), ["a", "a", "a"])

    def test_what_a_record_has_is_not_trained_again_in_another_folder(self):
        file = self.folder / "record.json"
        runs = [Run("a", self.job(layers=1)), Run("b", self.job(layers=1), timed=True),
                Run("c", self.job(kind="unstable"), may_diverge=True)]

        def losses(folder, runs, record):
            folder.mkdir(exist_ok=True)
            results = Runner(self.runner.weft, folder, 2, record).run_all(runs)
            return [final_loss(results[run.name]) for run in runs]

        def calls():
            return sorted(self.calls.read_text().split())

        self.assertEqual(losses(self.folder / "first", runs, None), [2.25, 2.25, math.inf])
        self.assertEqual(calls(), ["a", "b", "c"])
        for folder in ("first", "second"):  # the first fills the record, the second has but that
            found = losses(self.folder / folder, [runs[0], runs[2]], Record(file))
            self.assertEqual(found, [2.25, math.inf])
        self.assertEqual(calls(), ["a", "b", "c"])
        self.assertEqual(Record(file).known["a"]["summary"],
                         {"validation_loss_nats": 2.25, "phases": [{"training_flops": 3}]})
        losses(self.folder / "second", runs, Record(file))
        self.assertEqual(calls(), ["a", "b", "b", "c"])  # seconds are of this machine
        losses(self.folder / "third", [Run("a", self.job(layers=2))], Record(file))
        self.assertEqual(calls(), ["a", "a", "b", "b", "c"])

    def test_divergence_is_a_result_only_where_it_is_expected(self):
        job = self.job(kind="unstable")
        result = self.runner.run_all([Run("a", job, may_diverge=True)])["a"]
        self.assertTrue(result["diverged"])
        self.assertEqual(final_loss(result), float("inf"))
        with self.assertRaises(MeasurementError):
            self.runner.run_all([Run("b", job)])
        with self.assertRaises(MeasurementError):
            self.runner.run_all([Run("c", self.job(kind="wrong"), may_diverge=True)])

    def test_a_run_starts_from_the_export_of_its_base(self):
        run = Run("a", self.job(import_path=EXPORTED), base=Run("search", self.job(layers=1)))
        self.assertEqual(seconds_of(self.runner.run_all([run])["a"]), 2)
        self.runner.run_all([run])
        self.assertEqual(self.calls.read_text().split(), ["a", "export", "a"])
        other = Run("a", run.job, base=Run("search", self.job(layers=2)))
        self.runner.run_all([other])
        self.assertEqual(self.calls.read_text().split(), 2 * ["a", "export", "a"])
        with self.assertRaises(MeasurementError):
            self.runner.run_all([Run("b", run.job, base=Run("c", self.job(kind="unwilling")))])

    def test_a_run_reads_the_exports_of_several(self):
        def run(layers):
            inputs = (("small", Run("b", self.job(layers=1))), ("large", Run("c", self.job(layers=layers))))
            return Run("a", self.job(import_path="large"), inputs=inputs)
        for _ in range(2):
            result = self.runner.run_all([run(2)])["a"]
            self.assertEqual(result["input_losses"], {"small": 2.25, "large": 2.25})
        self.assertEqual(self.calls.read_text().split(), ["a", "export", "a", "export", "a"])
        self.assertFalse((self.folder / "runs/a/large").exists())
        self.runner.run_all([run(3)])
        self.assertEqual(len(self.calls.read_text().split()), 10)

    def test_relatives_are_shown_next_to_plain_training(self):
        shown = relatives.Relatives(gpt.CharacterGpt({"train": ["a/train.bin"]}, 65).job, "plays.txt",
                                    {"train": ["bible.txt"]})
        result = {"diverged": False, "validation": [[400, 2.0]], "metrics": {
            relatives.SMALL_LOSS: [[400, 2.5]]}, "summary": {"validation_loss_nats": 2.0, "seconds": 8.0},
                  "input_losses": {name: 3.0 + i for i, (name, _) in enumerate(shown.value.inputs)}}
        report = shown.report({run.name: result for run in shown.runs()})
        rows = {row[0]: row[1:] for row in report.table}
        self.assertEqual(rows["majority kernels"][:3], ["2.0000", "2.0000 to 2.0000", "1.00"])
        self.assertEqual(rows["the small one within it"][:3], ["2.5000", "2.5000 to 2.5000", ""])
        self.assertEqual(rows["small base + V"][0], "5.0000")
        self.assertEqual(rows["the large base"][0], "7.0000")
        self.assertEqual(rows["large base + V of the small one"][0], "2.0000")

    def test_curves_are_means_of_equal_stretches(self):
        points = [(step, float(step)) for step in range(1, 1001)]
        curve = thinned(points)
        self.assertEqual(len(curve), 200)
        self.assertEqual(curve[0], [5, 3.0])
        self.assertEqual(curve[-1], [1000, 998.0])

    def test_evaluations_without_accuracy_are_read(self):
        weft = self.runner.weft
        weft.write_text(weft.read_text().replace(" accuracy 87.5 %", ""))
        result = self.runner.run_all([Run("a", self.job())])["a"]
        self.assertEqual((result["validation"], result["accuracy"]), ([[2, 2.25]], []))

    def test_characters_are_numbered_and_parted_nine_to_one(self):
        text = self.folder / "text"
        text.write_text("abcabcabca")
        data, vocabulary = gpt.write_characters(text, self.folder / "characters")
        self.assertEqual(vocabulary, 3)
        parts = []
        for name in ("train", "validation"):
            part = array.array("H")
            part.frombytes((self.folder / "runs/a" / data[name][0]).resolve().read_bytes())
            parts.append(part.tolist())
        self.assertEqual(parts, [[0, 1, 2, 0, 1, 2, 0, 1, 2], [0]])

    def test_names_and_jobs_of_all_runs_differ(self):
        base = gpt.CharacterGpt({"format": "nanogpt", "train": ["a/train.bin"]}, 65)
        every = [base] + [kind(base.job) for kind in (
            gpt.Precisions, gpt.ActivationBits, gpt.Optimizers, gpt.Depth)]
        every.append(sparse.Densities(base.job))
        every.append(relatives.Relatives(base.job, "plays.txt", {"train": ["bible.txt"]}))
        runs = {}
        for run in (run for experiment in every for run in experiment.runs()):
            self.assertRegex(run.name, r"^[a-z0-9][a-z0-9-]*[a-z0-9]$")
            self.assertEqual(runs.setdefault(run.name, run), run)
        jobs = [json.dumps([run.job, run.base and run.base.job]) for run in runs.values()]
        self.assertEqual(len(set(jobs)), len(jobs))


if __name__ == "__main__":
    unittest.main()
