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

    def test_a_rate_at_the_end_of_those_tried_is_called_so(self):
        for rate, rates, text in (
                (2, [1, 2, 4], "Best learning rate 2 of 1, 2, 4"),
                (4, [1, 2, 4], "Best learning rate 4 of 1, 2, 4: the largest, so that others may be "
                               "better still"),
                (1, [1, 2, 4], "Best learning rate 1 of 1, 2, 4: the smallest, so that others may be "
                               "better still"),
                (1e-3, [1e-3], "Learning rate 0.001, not tuned")):
            self.assertEqual(script.rates_text(rate, rates), text)

    def test_the_better_v_cycle_of_each_gpt_is_shown_with_its_target(self):
        def family(title, two, three, **of_three):
            rows = [{"method": "V-cycle, two levels", "flops_saving": two, "extrapolated": False},
                    {"method": "V-cycle, three levels", "flops_saving": three,
                     "extrapolated": False, **of_three},
                    {"method": "one-layer expansion", "flops_saving": 0.9, "extrapolated": False}]
            return {"title": title, "rows": rows}
        lines = script.v_cycle_lines({"families": [
            family("GPT", 0.1, 0.21, seconds_saving=0.05), family("BERT", 0.5, 0.5),
            family("GPT, small", 0.19, 0.05), family("GPT, large", 0.3, 0.4, extrapolated=True)]})
        self.assertEqual(lines[-4:], [
            "| GPT | three | 21 %: reached | 5 %: missed |",
            "| GPT, small | two | 19 %: missed | not measured |",
            "| GPT, large | three | 40 %*: beyond the budgets | not measured |", ""])
        self.assertEqual(script.v_cycle_lines({"families": [family("ViT", 0.1, 0.1)]}), [])


if __name__ == "__main__":
    unittest.main()
