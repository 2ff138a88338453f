"""What `weft plan --cluster` says and draws, without any daemon: as text, JSON and HTML."""

import html.parser
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import yaml

BIN = pathlib.Path(os.environ["WEFT_BIN"])
ROOT = pathlib.Path(__file__).resolve().parents[2]
GIB = 1 << 30
HOSTILE = "</title><script>alert(1)</script> &amp; \"quoted\" <img src=x onerror='y'>"


def machine(name, cores=4, memory=16 * GIB, speed=1.0):
    return {"worker_id": name, "isa": "avx2", "cores": cores, "memory_bytes": memory,
            "memory_limit_bytes": memory, "copy_bytes_per_second": 2e10,
            "loopback_bytes_per_second": 1e9,
            "gemm": [{"precision": "fp32", "m": size, "n": 512, "k": 512, "threads": 1,
                      "flops_per_second": speed * 5e10} for size in (64, 512, 4096)]}


def job(**resources):
    return {"name": "report", "data": {"train": ["text.txt"]},
            "model": {"layers": 6, "width": 384, "heads": 6, "context": 256, "vocab_size": 8192},
            "train": {"steps": 2000, "global_batch": 32, "precision": "fp32"},
            "resources": resources}


class Tags(html.parser.HTMLParser):
    """The page as a browser reads it: its elements, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.loads, self.text = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append(tag)
        self.loads += [value for name, value in attributes
                       if name in ("src", "href", "xlink:href", "data", "action", "style", "poster")
                       or name.startswith("on")]

    def handle_data(self, data):
        self.text += data


class PlanReport(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        (pathlib.Path(self.folder.name) / "text.txt").write_text("text")

    def file(self, name, content):
        path = pathlib.Path(self.folder.name) / name
        path.write_text(json.dumps(content))
        return path

    def plan(self, spec, cluster, *options):
        command = [BIN / "weft", "plan", self.file("job.json", spec),
                   "--cluster", self.file("cluster.json", cluster), *options]
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)

    def test_the_page_of_quantised_weights_says_what_plans_of_its_example_need(self):
        page = (ROOT / "docs/techniques/weight_quantization.md").read_text()
        rows = dict(re.findall(r"^\| (full tuning|LoRA|QLoRA) \| (.*) \|$", page, re.MULTILINE))
        example = yaml.safe_load((ROOT / "docs/examples/cluster/qlora_7b.yaml").read_text())
        example["data"]["train"] = ["text.txt"]
        model = example["model"]
        # The page compares what others need with the laptop's column.
        published = re.search(r"LLaMA-Factory.*\| (.*) with micro-batches", page)[1]
        self.assertEqual(re.findall(r"[\d.]+ GiB", published),
                         [re.search(r"[\d.]+ GiB", rows[name].split(" | ")[-1])[0]
                          for name in ("QLoRA", "LoRA", "full tuning")])
        columns = {"a100_pcie_2x4": {"ranks": 1}, "h100_ndr_64x8": {"ranks": 1},
                   "laptop": {"ranks": 1, "micro_batch": 1}}
        for name in ("QLoRA", "LoRA", "full tuning"):
            cells = rows[name].split(" | ")
            self.assertEqual(len(cells), len(columns))
            for cell, (cluster, resources) in zip(cells, columns.items()):
                with self.subTest(name, cluster=cluster):
                    plan = self.check_cell(cell, {**example, "resources": resources}, cluster)
                    if name == "QLoRA" and cluster == "laptop":
                        self.assertIn("where a step takes half an hour", page)
                        self.assertAlmostEqual(plan["prediction"]["step_seconds"] / 60, 30, delta=15)
            model.pop("weight_quantization" if name == "QLoRA" else "peft", None)
        # What the page has full tuning fit by.
        self.assertIn("two GPUs, or the optimizer's state on the host", rows["full tuning"])
        for resources in ({"ranks": 2, "tensor_parallel": 2}, {"ranks": 1, "offload_optimizer": "host"}):
            for cluster in ("a100_pcie_2x4", "h100_ndr_64x8"):
                with self.subTest("full tuning", cluster=cluster, **resources):
                    report = self.planned_on({**example, "resources": resources},
                                             ROOT / f"docs/examples/clusters/{cluster}.yaml")
                    self.assertTrue(report["candidates"][0]["feasible"])

    def test_a_gpu_of_48_gb_has_room_for_65_b_quantised_parameters(self):
        example = yaml.safe_load((ROOT / "docs/examples/cluster/qlora_65b.yaml").read_text())
        example["data"]["train"] = ["text.txt"]
        cluster = ROOT / "docs/examples/clusters/l40s.yaml"
        report = self.planned_on(example, cluster)
        plan = report["candidates"][0]["plan"]
        self.assertGreater(report["parameters"], 65e9)
        self.assertEqual(plan["device"], "cuda")
        self.assertEqual(plan["offload_optimizer"], "host")
        # The words alone take 4.127 bits of a number.
        self.assertGreater(plan["prediction"]["stage_bytes"][0], 65e9 * 4.127 / 8)
        self.assertLess(plan["prediction"]["stage_bytes"][0], 46.5e9)
        del example["model"]["weight_quantization"]
        self.assertEqual(self.plan_on(example, cluster).returncode, 7)

    def test_a_plan_with_frozen_weights_says_what_they_save(self):
        example = yaml.safe_load((ROOT / "docs/examples/cluster/qlora_7b.yaml").read_text())
        example["data"]["train"] = ["text.txt"]
        example["resources"] = {"ranks": 1}
        # LoRA of rank 16 on the seven matrices of each of 32 blocks.
        factors = 32 * 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
        cluster = ROOT / "docs/examples/clusters/a100_pcie_2x4.yaml"
        report = self.planned_on(example, cluster)
        self.assertEqual(report["trained_parameters"], factors)
        self.assertEqual(report["parameters"], 6738415616 + factors)
        # The gradients of all matrices, for 16 sequences of 512 tokens.
        matrices = 32 * (4 * 4096 * 4096 + 3 * 4096 * 11008) + 32000 * 4096
        self.assertAlmostEqual(
            report["skipped_weight_gradient_flops"] / (2 * 16 * 512 * matrices), 1, places=9)
        # With adapters of attention alone the MLPs do not keep what they read, in bf16.
        del example["model"]["peft"]["target_modules"]
        attention = self.planned_on(example, cluster)
        plan = attention["candidates"][0]["plan"]
        self.assertEqual(set(plan["block_memory_policy"]), {"keep"})
        self.assertGreaterEqual(attention["unkept_activation_bytes"],
                                31 * plan["micro_batch"] * 512 * 4096 * 2)
        text = self.plan_on(example, cluster).stdout
        self.assertRegex(text, r"trained +8\.39 M of 6\.75 G \(0\.12 %\)")
        self.assertRegex(text, r"weight gradients skipped +108 TFLOPs a step")
        self.assertRegex(text, r"activations not kept +[\d.]+ [GM]iB")

    def plan_on(self, spec, cluster, *options):
        return subprocess.run(
            list(map(str, [BIN / "weft", "plan", self.file("job.json", spec),
                           "--cluster", cluster, *options])),
            capture_output=True, text=True, timeout=120)

    def planned_on(self, spec, cluster):
        done = self.plan_on(spec, cluster, "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def check_cell(self, cell, spec, cluster):
        """What a page says of the plan on this cluster of the examples; the plan, where one fits."""
        file = ROOT / f"docs/examples/clusters/{cluster}.yaml"
        planned = self.plan_on(spec, file, "-o", "json")
        if "does not fit" in cell:
            self.assertEqual(planned.returncode, 7, planned.stderr)
            said = planned.stdout + planned.stderr
            self.assertIn(re.search(r"[\d.]+ GiB", cell)[0], said)
            # It would fit with quantised weights.
            self.assertEqual(bool(re.search(r"weight_quantization.*\bnf4", said)),
                             "peft" in spec["model"])
            return None
        plan = json.loads(planned.stdout)["candidates"][0]["plan"]
        memory = plan["prediction"]["memory_per_rank"]
        for said in (f"{sum(memory.values()) / GIB:.1f} GiB",
                     f"parameters {memory['parameters_bytes'] / GIB:.1f}",
                     f"activations {memory['activations_bytes'] / GIB:.1f}"):
            self.assertIn(said, cell)
        return plan

    def test_files_of_clusters_that_the_docs_show_can_be_planned_for(self):
        files = sorted((ROOT / "docs/examples/clusters").glob("*.yaml"))
        self.assertEqual(len(files), 6)
        for file in files:
            path = self.file("job.json", job(device="auto"))
            done = subprocess.run([BIN / "weft", "plan", path, "--cluster", file, "-o", "json"],
                                  capture_output=True, text=True, timeout=120)
            self.assertEqual(done.returncode, 0, (file, done.stderr))
            plan = json.loads(done.stdout)["candidates"][0]["plan"]
            name = file.stem.split("_")[0]
            self.assertTrue(all(worker.startswith(name) for worker in plan["rank_workers"]), plan)

    def test_a_slower_network_makes_a_plan_between_machines_slower(self):
        def seconds(**network):
            cluster = {"workers": [{**machine("a"), **network, "count": 2}]}
            done = self.plan(job(ranks=8, threads_per_rank=1), cluster, "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["candidates"][0]["plan"]["prediction"]["step_seconds"]

        as_loopback = seconds()
        self.assertEqual(seconds(network_bytes_per_second=1e12), as_loopback)
        self.assertGreater(seconds(network_bytes_per_second=1e7), 1.5 * as_loopback)

    def test_what_lies_between_racks_makes_a_plan_across_them_slower(self):
        def plan(between, *options):
            workers = [{**machine(name), "rack": name, **between} for name in ("a", "b")]
            return self.plan(job(ranks=8, threads_per_rank=1), {"workers": workers}, *options)

        def seconds(**between):
            done = plan(between, "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["candidates"][0]["plan"]["prediction"]["step_seconds"]

        as_within = seconds()
        self.assertEqual(seconds(between_racks_bytes_per_second=1e12), as_within)
        self.assertGreater(seconds(between_racks_bytes_per_second=1e7), 1.5 * as_within)
        self.assertGreater(seconds(between_racks_latency_seconds=0.01), as_within)
        refused = plan({"between_racks_bytes_per_second": -1})
        self.assertNotEqual(refused.returncode, 0)
        self.assertRegex(refused.stderr, r"cluster\.json:1:.*between_racks_bytes_per_second is -1")
        one_rack = {"workers": [{**machine("a"), "between_racks_bytes_per_second": 1e9}]}
        self.assertIn("all machines are in the same one", self.plan(job(), one_rack).stderr)

    def test_ranks_keep_away_from_a_slow_link_between_two_machines(self):
        def plan(links, *options):
            workers = [{**machine(name), "cores": 1, "rack": name[0],
                        "network_bytes_per_second": 1e9} for name in ("a0", "a1", "b0", "b1")]
            return self.plan(job(ranks=4, threads_per_rank=1, tensor_parallel=2),
                             {"workers": workers, "links": links}, *options)

        def best(links):
            done = plan(links, "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads(done.stdout)["candidates"][0]["plan"]

        plain, slow = best([]), best([{"workers": ["a0", "a1"], "bytes_per_second": 1e6}])
        self.assertEqual(plain["rank_workers"], ["a0", "a1", "b0", "b1"])
        self.assertEqual(sorted(slow["rank_workers"]), plain["rank_workers"])
        for group in (slow["rank_workers"][:2], slow["rank_workers"][2:]):
            self.assertNotEqual(set(group), {"a0", "a1"})
        self.assertAlmostEqual(slow["prediction"]["step_seconds"],
                               plain["prediction"]["step_seconds"])
        racks = best([{"racks": ["a", "b"], "bytes_per_second": 1e6}])
        self.assertGreater(racks["prediction"]["step_seconds"],
                           plain["prediction"]["step_seconds"])
        for links, message in (
                ([{"workers": ["a0", "a2"], "bytes_per_second": 1e6}],
                 r"cluster\.json: links\[0\]: no machine has the worker_id 'a2'; did you mean"),
                ([{"workers": ["a0", "a1"], "bytes_per_second": 2e9}],
                 r"cluster\.json: links\[0\]: .*sends 1e\+09 in all\s+hint: network_bytes"),
                ([{"racks": ["a", "c"], "latency_seconds": 1e-3}], r"no machine has the rack 'c'"),
                ([{"workers": ["a0", "a1"]}], r"says neither bytes_per_second nor latency"),
                ([{"workers": ["a0", "a1"], "bytes": 1}], r"links\[0\]\.bytes is not a known field"),
                ([{"workers": ["a0", "a1"], "bytes_per_second": -1}], r"bytes_per_second is -1"),
                ("fast", r"links must be"),
                ([{}] * 257, r"links")):
            refused = plan(links)
            self.assertNotEqual(refused.returncode, 0, links)
            self.assertRegex(refused.stderr, message)

    def test_groups_of_machines_that_say_too_little_are_refused(self):
        done = self.plan(job(), {"workers": [{**machine("a"), "gpus": 8}]})
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("wants one entry of devices", done.stderr)

    def test_the_page_is_well_formed_and_needs_nothing_else(self):
        spec = job(pipeline_parallel=2, ranks=4, threads_per_rank=1, micro_batch=2)
        cluster = {"workers": [machine("a" + HOSTILE), machine("b", cores=8)],
                   "costs": {"currency": "<b>EUR</b>",
                             "machines": [{"price_per_hour": 2, "watts": 300}]}}
        done = self.plan(spec, cluster, "--frontier", "-o", "html")
        self.assertEqual(done.returncode, 0, done.stderr)
        root = xml.etree.ElementTree.fromstring(done.stdout)
        self.assertTrue(root.tag.endswith("html"))
        page = Tags(done.stdout)
        self.assertEqual(page.loads, [])
        for element in ("script", "img", "b", "link", "iframe", "object", "embed"):
            self.assertNotIn(element, page.elements)
        self.assertIn("alert(1)", page.text)
        pictures = [element for element in root.iter() if element.get("role") == "img"]
        self.assertEqual(len(pictures), 6)
        style = root.find(".//{*}style").text
        self.assertIn("@media (prefers-color-scheme: dark)", style)
        self.assertIn("@media print", style)
        self.assertNotIn("url(", style)
        # A browser and an XML reader see the same elements.
        self.assertEqual(page.elements, [element.tag.split("}")[-1] for element in root.iter()])

    def test_json_has_every_part(self):
        cluster = {"workers": [machine("a"), machine("b")]}
        done = self.plan(job(), cluster, "--frontier", "-o", "json", "--top", "3")
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        self.assertTrue(report["candidates"][0]["chosen"])
        self.assertEqual(len(report["candidates"]), 3)
        self.assertEqual(len(report["details"]), 3)
        self.assertEqual([point["devices"] for point in report["frontier"]], [1, 2])
        for key in ("sensitivity", "alternatives", "timeline", "fewest_devices", "lines"):
            self.assertTrue(report[key], key)
        self.assertIn("the price of", report["notes"][0])
        self.assertEqual(report["details"][0]["price"], 0)

    def test_the_table_says_cost_time_and_what_would_help(self):
        cluster = {"workers": [machine("a")],
                   "costs": {"currency": "EUR", "machines": [{"price_per_hour": 2, "watts": 300}]}}
        done = self.plan(job(), cluster)
        self.assertEqual(done.returncode, 0, done.stderr)
        for text in ("limited by", "2.00 EUR an hour", "kWh", "10 % more of", "compute", "ZeRO 1"):
            self.assertIn(text, done.stdout)
        frontier = self.plan(job(), cluster, "--frontier")
        self.assertIn("By number of machines", frontier.stdout)

    def test_wishes_that_cannot_be_kept_say_by_how_much(self):
        cluster = {"workers": [machine("a")]}
        late = self.plan(job(), cluster, "--finish-within", "1m")
        self.assertEqual(late.returncode, 7)
        self.assertIn("more than the 1m00s asked for", late.stderr)
        self.assertIn("hint:", late.stderr)
        self.assertEqual(self.plan(job(), cluster, "--finish-within", "30d").returncode, 0)
        unpriced = self.plan(job(), cluster, "--goal", "cheapest")
        self.assertEqual(unpriced.returncode, 2)
        self.assertIn("no machine has a price", unpriced.stderr)
        costs = self.file("costs.json", {"machines": [{"price_per_hour": 1}]})
        priced = self.plan(job(), cluster, "--goal", "cheapest", "--costs", costs)
        self.assertEqual(priced.returncode, 0, priced.stderr)
        for wish in (["--finish-within", "soon"], ["--goal", "best"], ["--most-devices", "0"]):
            self.assertEqual(self.plan(job(), cluster, *wish).returncode, 2, wish)

    def test_bad_cost_files_name_the_field(self):
        cluster = {"workers": [machine("a")], "costs": {"machines": [{"price": 2}]}}
        done = self.plan(job(), cluster)
        self.assertEqual(done.returncode, 2)
        self.assertIn("costs.machines[0].price", done.stderr)
        negative = {"workers": [machine("a")], "costs": {"machines": [{"watts": -1}]}}
        self.assertEqual(self.plan(job(), negative).returncode, 2)

    def test_only_plans_have_a_page(self):
        done = subprocess.run([BIN / "weft", "version", "-o", "html"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("weft plan", done.stderr)


if __name__ == "__main__":
    unittest.main()
