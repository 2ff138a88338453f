"""The bookkeeping of tests/bench/growth."""

import argparse
import importlib.machinery
import importlib.util
import json
import math
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
from curves import growth as jobs  # noqa: E402
from curves.runs import MeasurementError, step_seconds  # noqa: E402

loader = importlib.machinery.SourceFileLoader("growth_script", str(HERE / "growth"))
script = importlib.util.module_from_spec(importlib.util.spec_from_loader("growth_script", loader))
loader.exec_module(script)


DATA = {"train": ["text"]}


def tuned(name, cosine, stable):
    """A family at a learning rate of 0.004 with both schedules, whose losses there are these."""
    family = jobs.family(name, DATA, 1)
    family.tried = {"cosine": {0.002: 9.0, 0.004: cosine, 0.008: 9.0},
                    "warmup_stable_decay": {0.002: 9.0, 0.004: stable, 0.008: 9.0}}
    return family


def result_of(run, loss):
    """As if a network of 1 FLOP and 1 ms a step had been trained by `run`; infinite: it diverged."""
    if math.isinf(loss):
        return {"diverged": True, "summary": None, "step_seconds": []}
    steps = [phase["steps"] for phase in run.job.get("phases", [run.job["train"]])]
    phases = [{"training_flops": count, "seconds": count / 1000} for count in steps]
    return {"diverged": False, "summary": {"phases": phases, "validation_loss_nats": loss},
            "step_seconds": [0.002 for _ in steps]}


class FakeRunner:
    """Notes what is run; losses are those of `loss_of` a run."""

    def __init__(self, loss_of):
        self.loss_of, self.names = loss_of, []

    def run_all(self, runs):
        runs = list(runs)
        self.names += [run.name for run in runs]
        return {run.name: result_of(run, self.loss_of(run)) for run in runs}


class Growth(unittest.TestCase):
    def test_costs_lie_on_lines_between_logarithms(self):
        points = [(100, 3.0), (400, 2.0), (1600, 1.5)]
        for loss, cost, beyond in ((3.0, 100, False), (2.5, 200, False), (2.0, 400, False),
                                   (1.75, 800, False), (1.5, 1600, False), (3.5, 50, True),
                                   (1.25, 3200, True)):
            found, is_beyond = script.cost_at(loss, points)
            self.assertTrue(math.isclose(found, cost), (loss, found))
            self.assertEqual(is_beyond, beyond, loss)

    def test_methods_end_in_the_schedule_that_is_better_from_scratch(self):
        for name in jobs.FAMILIES:
            for cosine, stable, better in ((4, 5, "cosine"), (5, 4, "warmup_stable_decay")):
                family = tuned(name, cosine, stable)
                runs = family.baselines(range(1, 4)) + family.method_runs(range(1, 4))
                names = [run.name for run in runs]
                self.assertEqual(len(names), len(set(names)))
                for method in family.methods:
                    job = family.run_of(method, 1).job
                    *before, last = job.get("phases", [{}])
                    self.assertEqual(last.get("schedule", better), better)
                    self.assertEqual(job["schedule"]["kind"], better)
                    self.assertTrue(all(own["schedule"] == "constant" for own in before))
                    self.assertEqual(job["schedule"]["final_ratio"], 0)
                    self.assertTrue({"layers", "width"}.isdisjoint(last), method.name)
                    self.assertEqual(job["optimizer"]["learning_rate"], 0.004)

    def test_the_decay_is_a_fifth_of_all_steps_and_fits_into_the_last_phase(self):
        family = tuned("gpt", 5, 4)
        for method in family.methods:
            job = family.run_of(method, 1).job
            phases = job.get("phases", [job["train"]])
            warmup = phases[-1].get("warmup_steps", job["schedule"]["warmup_steps"])
            room = phases[-1]["steps"] - warmup
            self.assertEqual(job["schedule"]["decay_steps"],
                             min(round(0.2 * sum(own["steps"] for own in phases)), room))
            self.assertGreater(room, 0.9 * job["schedule"]["decay_steps"])

    def test_each_method_says_what_was_published_of_such_a_network(self):
        published = {}
        for name in jobs.FAMILIES:
            family = jobs.family(name, DATA, 1)
            for method in family.methods:
                published[name, method.name] = jobs.PUBLISHED.get(method.name, {}).get(
                    family.job["model"]["family"])
        self.assertEqual([published[name, "V-cycle, two levels"] for name in jobs.FAMILIES],
                         [0.241, 0.19, 0.271])
        self.assertEqual([published[name, "masked structural growth"] for name in jobs.FAMILIES],
                         [0.29, 0.44, None])
        self.assertEqual([published[name, "Apollo"] for name in jobs.FAMILIES], [None] * 3)
        self.assertEqual(published["vit", "AutoProg"], 0.46)
        self.assertNotIn(("bert", "progressive layer dropping"), published)
        self.assertEqual(jobs.PUBLISHED.keys() & jobs.UNCHECKED.keys(), set())

    def test_the_images_of_a_vit_grow_with_its_layers(self):
        family = tuned("vit", 4, 5)
        method = next(method for method in family.methods if method.name == "AutoProg")
        job = family.run_of(method, 1).job
        self.assertEqual([own.get("layers", 8) for own in job["phases"]], [4, 5, 7, 8])
        self.assertEqual([own.get("image_size", 28) for own in job["phases"]], [14, 21, 21, 28])
        self.assertEqual(job["train"]["averaging"], {"kind": "ema", "decay": 0.98})
        self.assertTrue(family.described("AutoProg").startswith("250 of 4 x 96, 14 pixels; "))

    def test_more_rates_are_tried_where_the_best_is_the_last(self):
        self.assertEqual(jobs.rates_beyond({1: 3, 2: 2, 4: 3}), [])
        self.assertEqual(jobs.rates_beyond({1: 3, 2: 2, 4: 1}), [8])
        self.assertEqual(jobs.rates_beyond({1: 1, 2: 2, 4: math.inf}), [0.5])
        self.assertEqual(jobs.rates_beyond({1: 1}), [])
        self.assertEqual(jobs.rates_beyond({2 ** i: -i for i in range(jobs.MOST_RATES)}), [])
        family = jobs.family("gpt", DATA, 1)  # at 0.0015, 0.003, 0.006
        best = {"cosine": 0.012, "warmup_stable_decay": 0.00075}
        runner = FakeRunner(lambda run: abs(math.log(
            run.job["optimizer"]["learning_rate"] / best[run.job["schedule"]["kind"]])))
        script.tune(family, runner)
        self.assertEqual(sorted(family.tried["cosine"]), [0.0015, 0.003, 0.006, 0.012, 0.024])
        self.assertEqual(family.rate_of("cosine"), 0.012)
        self.assertEqual(family.rate_of("warmup_stable_decay"), 0.00075)
        self.assertEqual(len(runner.names), 10)

    def test_timed_runs_are_tenths(self):
        for name in jobs.FAMILIES:
            family = tuned(name, 4, 5)
            for method in family.methods:
                whole, tenth = family.run_of(method, 1).job, family.timed_run(method).job
                for long, short in zip(whole.get("phases", [whole["train"]]),
                                       tenth.get("phases", [tenth["train"]])):
                    self.assertEqual(long["steps"], 10 * short["steps"])

    def test_a_study_of_sizes_times_steps(self):
        family = jobs.scale_families(DATA, 1, "cpu")[0]
        family.tried = {"cosine": {0.004: 4.0}}
        timed = family.timed_run(family.methods[1])
        self.assertEqual([own["steps"] for own in timed.job["phases"]], [4, 4, 4, 4, 5])
        whole = family.run_of(family.methods[1], 1).job
        self.assertAlmostEqual(
            script.timed_seconds(family, whole, {"step_seconds": [0.5, 0.2, 0.1, 0.2, 0.5]}),
            0.5 * 100 + 0.2 * 100 + 0.1 * 800 + 0.2 * 800 + 0.5 * 1000)
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder)
            for name, seconds in (("phase-1", 1), ("phase-2", 2), (".", 3)):
                (output / name).mkdir(exist_ok=True)
                (output / name / "summary.json").write_text(
                    json.dumps({"median_step_seconds": seconds}))
            self.assertEqual(step_seconds(output, {"phases": [{}, {}, {}]}), [1, 2, 3])
            self.assertEqual(step_seconds(output, {"phases": []}), [3])

    def measured(self, options, known=None, loss_of=None):
        """The report of the GPT, and what was run for it."""
        def loss(run):
            steps = run.job["train"].get("steps", 1200)
            return 5 - math.log(steps) / 10 + 0.1 * (run.job["schedule"]["kind"] == "cosine")
        runner = FakeRunner(loss_of or loss)
        return script.measure(jobs.family("gpt", DATA, 1), runner, options, known), runner.names

    def options(self, *method):
        return argparse.Namespace(seeds=2, method=list(method) or None, gpu="", untimed=False)

    def test_both_schedules_are_reported_and_the_better_one_is_compared_with(self):
        report, _ = self.measured(self.options())
        self.assertEqual(report["schedule"], "warmup_stable_decay")
        for point in report["baseline"]:
            self.assertAlmostEqual(point["losses"]["cosine"] - point["loss"], 0.1)
            self.assertEqual(point["schedule"], "warmup_stable_decay")
            self.assertEqual(point["loss"], point["losses"]["warmup_stable_decay"])
        self.assertAlmostEqual(report["baseline"][-1]["seconds"], 1.2)
        row = next(row for row in report["rows"] if row["method"] == "one-layer expansion")
        # As many steps, each as dear, and the loss of the whole training.
        self.assertAlmostEqual(row["flops_saving"], 0)
        self.assertAlmostEqual(row["seconds_saving"], 0)
        self.assertEqual((row["schedule"], row["rate"], row["published_saving"]),
                         ("warmup_stable_decay", report["rate"], 0.8))
        page = script.page({"cpu": "a CPU", "date": "today", "families": [report]})
        self.assertIn("| from scratch | steps | cosine | warmup_stable_decay | FLOPs | s |", page)
        self.assertIn("| **4.2910** | 1.2e+03 | 1 |", page)
        self.assertIn("Methods end in warmup_stable_decay.", page)
        self.assertNotIn("plateau", page)
        self.assertIn("10 times those of a training of a tenth of the steps", page)
        self.assertIn("all trainings take one core, alone: GPT 0.0 minutes and 0.0 hours", page)
        self.assertIn("| one-layer expansion (without muP) | 720 of 1 x 128; 480 of 8 x 128 | "
                      "4.2910 (4.2910 to 4.2910) | ", page)
        self.assertIn(" | 48 %? |", page)

    def test_what_diverges_has_a_row_without_numbers(self):
        report, _ = self.measured(
            self.options(), loss_of=lambda run: math.inf if run.name == "gpt-g-stack-2" else
            5 - run.job["train"].get("steps", 900) / 1000)
        row = next(row for row in report["rows"] if row["method"] == "G_stack")
        self.assertEqual((row["loss"], row["flops_saving"], row["losses"]), (None, None, [4.1, None]))
        page = script.page({"cpu": "a CPU", "date": "today", "families": [report]})
        self.assertIn("| G_stack | 360 of 2 x 128; 720 of 8 x 128 | diverged |  |  | 35 % |", page)
        json.dumps(report, allow_nan=False)

    def test_a_plateau_that_training_from_scratch_leaves_late_is_said(self):
        def points(*losses):
            return [{"budget": budget, "flops": 100 * budget, "loss": loss}
                    for budget, loss in zip(jobs.BUDGETS, losses, strict=True)]
        self.assertEqual(script.plateau_text(points(4.55, 4.29, 4.08, 3.95)), [])
        text, _ = script.plateau_text(points(5.64, 5.49, 5.22, 4.41))
        self.assertTrue(text.startswith("From 75 % to 100 % of the steps the loss from scratch falls"))
        text, _ = script.plateau_text(points(5.64, 5.65, 5.22, 4.91))
        self.assertTrue(text.startswith("From 50 % to 75 % of the steps the loss from scratch falls"))

    def test_a_method_is_added_to_what_was_measured(self):
        first, _ = self.measured(self.options("G_stack"))
        self.assertEqual([row["method"] for row in first["rows"]], ["G_stack"])
        known = json.loads(json.dumps(first))
        second, names = self.measured(self.options("SPARKLING"), known)
        self.assertEqual(names, ["gpt-sparkling-1", "gpt-sparkling-2", "gpt-sparkling-timed"])
        self.assertEqual([row["method"] for row in second["rows"]], ["G_stack", "SPARKLING"])
        self.assertEqual(second["rows"][0], known["rows"][0])
        self.assertEqual(second["baseline"], known["baseline"])
        self.assertEqual(second["rate"], known["rate"])
        again, _ = self.measured(self.options("G_stack"), known, lambda run: 4.5)
        self.assertEqual([row["loss"] for row in again["rows"]], [4.5])
        with self.assertRaises(MeasurementError):
            self.measured(self.options("SPARKLING"), {**known, "seeds": 3})

    def test_nothing_is_added_to_measurements_of_another_machine_or_version(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "growth.json"
            family = {"name": "gpt", "tried": {}}
            path.write_text(json.dumps({"cpu": script.cpu_name(), "families": [family]}))
            self.assertEqual(script.read_report(path), {"gpt": family})
            for cpu, families in (("another", [family]), (script.cpu_name(), [{"title": "GPT"}])):
                path.write_text(json.dumps({"cpu": cpu, "families": families}))
                with self.assertRaises(MeasurementError):
                    script.read_report(path)

    def test_a_rate_at_the_end_of_those_tried_is_called_so(self):
        for tried, text in (
                ([[2, 3.0], [4, 3.5], [1, None]], "cosine: best learning rate 2 of 1, 2, 4"),
                ([[1, 3.0], [2, 2.5], [4, 2.0]], "cosine: best learning rate 4 of 1, 2, 4: the largest, "
                                                 "so that others may be better still"),
                ([[1, 3.0], [2, 3.5], [4, 4.0]], "cosine: best learning rate 1 of 1, 2, 4: the "
                                                 "smallest, so that others may be better still"),
                ([[1e-3, 3.0]], "cosine: learning rate 0.001, given")):
            self.assertEqual(script.rates_text("cosine", tried), text)

    def test_the_best_v_cycle_of_each_gpt_is_shown_with_its_target(self):
        def family(title, two, three, seconds, parameters=None, extrapolated=False, loss=3.9):
            rows = [{"method": method, "flops_saving": saving, "seconds_saving": seconds,
                     "extrapolated": extrapolated, "flops": 60.0, "seconds": 12.0, "loss": loss}
                    for method, saving in (("V-cycle, two levels", two),
                                           ("V-cycle, three levels", three),
                                           ("one-layer expansion", 0.9), ("V-cycle, diverged", None))]
            return {"title": title, "rows": rows, "parameters": parameters,
                    "baseline": [{"flops": 100.0, "seconds": 10.0, "loss": 3.8}]}
        lines = script.v_cycle_lines({"families": [
            family("GPT", 0.1, 0.2, 0.05), family("BERT", 0.5, 0.5, 0.5),
            family("GPT, small", 0.1, 0.05, 0.02, 1e6),
            family("GPT, larger", 0.3, 0.2, 0.05, 4e6, extrapolated=True),
            family("GPT, large", 0.5, 0.2, 0.05, 4e6, extrapolated=True, loss=3.7)]})
        self.assertEqual(lines[-9:], [
            "| GPT | three levels | 20 %: reached | 5 %: missed |",
            "| GPT, small | two levels | 10 %: missed | 2 %: missed |",
            "| GPT, larger | two levels | 30 %*: beyond the budgets | 5 %*: beyond the budgets |",
            "| GPT, large | two levels | 50 %*, at least 40 %: reached | 5 %*: beyond the budgets |", "",
            "GPT: the V-cycle takes 60 % of the FLOPs of the longest training from scratch and ends "
            "+0.100 nats from its loss, to which 75 % suffice from scratch; it makes 50 % of that "
            "training's FLOPs a second: smaller networks use the machine less well.", "",
            "By the study of sizes 20 % of the FLOPs are saved from about 2 M parameters on, and 10 % "
            "of the seconds are not saved up to 4 M parameters.", ""])
        self.assertEqual(script.v_cycle_lines({"families": [family("ViT", 0.1, 0.1, 0.1)]}), [])

    def test_a_size_from_which_on_all_larger_ones_save(self):
        for points, target, size in (([(1, 0.1), (4, 0.3)], 0.2, 2), ([(1, 0.2), (4, 0.3)], 0.2, 1),
                                     ([(1, 0.3), (4, 0.1)], 0.2, None),
                                     ([(1, 0.3), (2, 0.1), (8, 0.3)], 0.2, 4)):
            found = script.begins_at(points, target)
            self.assertTrue(found == size or math.isclose(found, size), (points, found))


if __name__ == "__main__":
    unittest.main()
