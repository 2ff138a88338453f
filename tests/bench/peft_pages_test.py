"""What peft_methods, peft_vs_pytorch and qlora_memory make of figures; with a stand-in for weft."""

import importlib.machinery
import importlib.util
import json
import pathlib
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
PAGES = HERE.parents[1] / "docs/benchmarks"
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

# Plans a hundred bytes for each block and component; a run takes half of that as workspace.
STAND_IN = """#!/usr/bin/env python3
import json, pathlib, sys
job = json.loads(pathlib.Path(sys.argv[2]).read_text())
names = ("parameters", "gradients", "optimizer", "activations", "workspace")
memory = {f"{name}_bytes": 100 * job["model"]["layers"] for name in names}
if sys.argv[1] == "plan":
    cluster = json.loads(pathlib.Path(sys.argv[sys.argv.index("--cluster") + 1]).read_text())
    assert cluster["workers"][0]["cores"] == job["resources"]["threads_per_rank"]
    print(json.dumps({"parameters": job["model"]["width"], "candidates": [
        {"plan": {"prediction": {"memory_per_rank": {**memory, "runtime_bytes": 7}}}}]}))
elif sys.argv[1] == "train":
    run = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
    run.mkdir()
    memory["workspace_bytes"] //= 2
    (run / "summary.json").write_text(json.dumps({"memory_peak": memory}))
"""


def tool(name):
    loader = importlib.machinery.SourceFileLoader(name, str(HERE / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


class Methods(unittest.TestCase):
    def setUp(self):
        self.tool = tool("peft_methods")

    def test_the_page_has_the_figures_of_its_file_and_keeps_what_is_written_by_hand(self):
        page = PAGES / "peft_methods.md"
        result = json.loads((PAGES / "peft_methods.json").read_text())
        remarks = self.tool.hand_written(page)
        self.assertGreater(len(remarks.splitlines()), 2)
        self.assertEqual(self.tool.page(result, remarks), page.read_text())
        self.assertEqual(self.tool.hand_written(None), self.tool.HAND_WRITTEN + "\n")

    def test_ranks_of_equal_scores_are_their_mean(self):
        self.assertEqual(self.tool.ranks({"a": 3, "b": 1, "c": 3}), {"a": 2.5, "b": 1, "c": 2.5})

    def test_rank_correlation_is_one_of_the_same_order_and_its_opposite_of_the_reverse(self):
        one = self.tool.ranks({"a": 0.1, "b": 0.2, "c": 7, "d": 8})
        reverse = self.tool.ranks({"a": 4, "b": 3, "c": 2, "d": 1})
        self.assertAlmostEqual(self.tool.rank_correlation(one, one), 1)
        self.assertAlmostEqual(self.tool.rank_correlation(one, reverse), -1)
        # 1 - 6 * (1 + 1) / (4 * 15)
        swapped = self.tool.ranks({"a": 2, "b": 1, "c": 3, "d": 4})
        self.assertAlmostEqual(self.tool.rank_correlation(one, swapped), 0.8)

    def test_pairs_in_the_other_order_are_named(self):
        rows = [{"method": "LoRA", "loss": 1.0}, {"method": "MiSS", "loss": 2.0},
                {"method": "prefix", "loss": 3.0}, {"method": "BitFit", "loss": 0.5}]
        text = "\n".join(self.tool.comparison(rows))
        self.assertIn("Rank correlation (Spearman) over 3 methods: 0.50.", text)
        self.assertIn("1 of 3 pairs are in the other order there: LoRA and MiSS.", text)
        self.assertIn("| LoRA | 1.000 | 47.8 % | 1 | 2 | -1 |", text)
        self.assertIn("| prefix | 3.000 | 41.6 % | 3 | 3 | 0 |", text)
        self.assertNotIn("BitFit", text)

    def test_costs_are_ratios_to_lora_here_and_there(self):
        def row(method, peak, seconds, share):
            return {"method": method, "peak_bytes": peak, "seconds": seconds, "trained_share": share}
        rows = [row("LoRA", 100, 10, 0.04), row("DoRA", 150, 13, 0.05), row("MiSS", 90, 11, 0.02),
                row("BitFit", 1, 1, 0.001)]
        text = "\n".join(self.tool.costs(rows))
        self.assertIn("| DoRA | 1.50 | 1.10 | 1.30 | 1.26 | 5.00 % | 9.3 M |", text)
        self.assertIn("| MiSS | 0.90 | 0.91 | 1.10 | 0.95 | 2.00 % | 7.3 M |", text)
        self.assertNotIn("BitFit", text)
        # Of three methods two neighbours are swapped: 1 - 6 * (1 + 1) / (3 * 8)
        self.assertIn("Rank correlations: memory 1.00, time 0.50, trained numbers 1.00.", text)


class VsPytorch(unittest.TestCase):
    def test_the_page_has_the_figures_of_its_file(self):
        result = json.loads((PAGES / "peft_vs_pytorch_avx512.json").read_text())
        self.assertEqual(tool("peft_vs_pytorch").page([result]), (PAGES / "peft_vs_pytorch.md").read_text())

    def test_a_page_of_two_sizes_says_which_each_row_is_of(self):
        compared = tool("peft_vs_pytorch")
        small = json.loads((PAGES / "peft_vs_pytorch_avx512.json").read_text())
        large = {**small, "layers": 24, "width": 1152,
                 "rows": [{**row, "parameters": 421e6} for row in small["rows"]]}
        text = compared.page([small, large])
        one, other = (compared.size_of(result) for result in (small, large))
        self.assertEqual(other, "24 layers of width 1152 (421 M parameters)")
        self.assertIn(f"a Llama of {one} or {other}, LoRA", text)
        self.assertIn(f"\n{other}: {large['cpu']}", text)
        self.assertEqual(compared.shape_of(24, 1152)["mlp-width"], 3072)

    def test_memory_is_predicted_to_one_percent(self):
        components = tool("peft_vs_pytorch").COMPONENTS
        rows = json.loads((PAGES / "peft_vs_pytorch_avx512.json").read_text())["rows"]
        self.assertGreaterEqual(len(rows), 4)
        for row in rows:
            for name in components:
                part = row["weft_memory"][name]
                self.assertAlmostEqual(part["predicted_bytes"] / part["measured_bytes"], 1, delta=0.01,
                                       msg=f"{row['method']} {row['precision']} {name}")

    def test_the_page_of_adapters_states_its_ratios(self):
        rows = json.loads((PAGES / "peft_vs_pytorch_avx512.json").read_text())["rows"]
        ratios = [row["ratio"] for row in rows]
        saved = [100 * (1 - row["weft_peak_bytes"] / row["pytorch_peak_bytes"]) for row in rows]
        self.assertIn(f"| {min(ratios):.2f} to {max(ratios):.2f} times the speed and {min(saved):.0f} to "
                      f"{max(saved):.0f} % less memory than peft with transformers, on a CPU",
                      (PAGES.parent / "techniques/peft.md").read_text())

    def test_predicted_and_measured_memory_is_a_table_of_rows_that_have_it(self):
        compared = tool("peft_vs_pytorch")
        self.assertEqual(compared.memory_table([{"method": "lora"}]), [])
        memory = {name: {"predicted_bytes": 3 << 20, "measured_bytes": 2 << 20} for name in compared.COMPONENTS}
        row = compared.memory_table([{"method": "lora", "precision": "fp32", "weft_memory": memory}])[-1]
        self.assertEqual(row, "| lora | fp32 | " + "3.00 / 2.00 | " * 5 + "15.00 / 10.00 | +50.00 % |")


class QloraMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.weft = self.folder / "weft"
        self.weft.write_text(STAND_IN)
        self.weft.chmod(0o755)
        self.tool = tool("qlora_memory")

    def test_memory_is_predicted_to_one_percent(self):
        for row in json.loads((PAGES / "qlora_memory.json").read_text())["rows"]:
            self.assertAlmostEqual(row["planned_small_bytes"] / row["measured_small_bytes"], 1, delta=0.01,
                                   msg=row["component"])

    def test_the_small_job_has_the_proportions_of_the_large_one(self):
        large, small = (job("text", 2)["model"] for job in (self.tool.large_job, self.tool.small_job))
        for name in ("layers", "width", "heads", "mlp_width", "vocab_size"):
            self.assertEqual(small[name] * self.tool.DIVISOR, large[name], name)
        self.assertEqual(small["peft"]["rank"] * self.tool.DIVISOR, large["peft"]["rank"])
        self.assertEqual(small["weight_quantization"], large["weight_quantization"])

    def test_rows_are_of_the_plans_and_of_the_run(self):
        result = self.tool.measure(self.weft, self.folder / "work", 2)
        self.assertEqual([row["component"] for row in result["rows"]], list(self.tool.COMPONENTS))
        for row in result["rows"]:
            taken = 400 if row["component"] == "workspace" else 800
            self.assertEqual([row["planned_large_bytes"], row["planned_small_bytes"],
                              row["measured_small_bytes"]], [3200, 800, taken])
        self.assertEqual((result["parameters"], result["small_parameters"]), (4096, 1024))
        text = self.tool.page(result)
        self.assertIn("| workspace | 0 | 0.00 | 0.00 | +100.00 % |", text)
        self.assertIn("8 blocks of width 1024 and rank 4", text)
        self.assertIn(f"| {100 * (4000 / 3600 - 1):+.2f} % |", text)

    def test_what_fails_is_an_error_that_names_the_command(self):
        self.weft.write_text("#!/bin/sh\necho no such job >&2\nexit 3\n")
        with self.assertRaisesRegex(self.tool.MeasurementError, "weft plan .*\n.*no such job"):
            self.tool.measure(self.weft, self.folder / "work", 2)

    def test_what_a_run_has_none_of_has_no_ratio(self):
        row = {"component": "gradients", "planned_large_bytes": 0, "planned_small_bytes": 0,
               "measured_small_bytes": 0}
        self.assertIsNone(self.tool.more(row))


if __name__ == "__main__":
    unittest.main()
