"""The bookkeeping of tests/bench/growth."""

import importlib.machinery
import importlib.util
import math
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
from curves import growth as jobs  # noqa: E402

loader = importlib.machinery.SourceFileLoader("growth_script", str(HERE / "growth"))
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("growth_script", loader))
loader.exec_module(script)


class Growth(unittest.TestCase):
    def test_costs_lie_on_lines_between_logarithms(self):
        points = [(100, 3.0), (400, 2.0), (1600, 1.5)]
        for loss, cost, beyond in ((3.0, 100, False), (2.5, 200, False), (2.0, 400, False),
                                   (1.75, 800, False), (1.5, 1600, False), (3.5, 50, True),
                                   (1.25, 3200, True)):
            found, is_beyond = script.cost_at(loss, points)
            self.assertTrue(math.isclose(found, cost), (loss, found))
            self.assertEqual(is_beyond, beyond, loss)

    def test_methods_are_cheaper_than_the_whole_training_and_end_decayed(self):
        for name in jobs.FAMILIES:
            family = jobs.family(name, {"train": ["text"]}, 1)
            family.rate = family.rates[0]
            names = [run.name for run in family.runs(range(1, 4))]
            self.assertEqual(len(names), len(set(names)))
            for method in family.methods:
                job = family.run_of(method, 1).job
                last = job.get("phases", [{}])[-1]
                self.assertEqual(last.get("schedule", job["schedule"]["kind"]), "cosine")
                self.assertEqual(job["schedule"]["final_ratio"], 0)
                self.assertTrue({"layers", "width"}.isdisjoint(last), method.name)

    def test_timed_runs_are_tenths(self):
        family = jobs.family("gpt", {"train": ["text"]}, 1)
        family.rate = 1e-3
        for method in family.methods:
            whole, tenth = family.run_of(method, 1).job, family.timed_run(method).job
            for long, short in zip(whole.get("phases", [whole["train"]]),
                                   tenth.get("phases", [tenth["train"]])):
                self.assertEqual(long["steps"], 10 * short["steps"])


if __name__ == "__main__":
    unittest.main()
