"""The jobs of docs/examples run as they are, except for their length, and learn."""

import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from weft_cluster import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEFT = pathlib.Path(os.environ["WEFT_BIN"]) / "weft"
STEPS = 12
FEW_STEPS = 8  # of killed jobs that do the same in all steps, or in one half
# Jobs that are killed: the step of the checkpoint that they go on from, which is in the middle of what
# the technique does, and fields by which it does all that within STEPS.
KILLED = {
    "sparse24": (3, {"mask_interval": 2}),
    "sparse24_activations": (3, {"switch_share": 0.4}),
    "sparse24_decay_search": (11, {"mask_interval": 2, "decay_search_steps": 4,
                                   "steps": STEPS + 4 * 4}),
    "sft_qlora": (3, {"steps": 8}),
    "sft_prompt": (3, {"steps": FEW_STEPS}),
    "sparse24_fine_tuning": (3, {"mask_interval": 2}),
    "sparse24_lazy_adapters": (6, {"adapter_share": 0.7}),
    "pruning": (5, {"interval": 2}),
    "pruning_at_start": (3, {"steps": FEW_STEPS}),
    "lottery_ticket": (7, {}),
    "early_bird": (5, {"interval": 3}),
    "low_rank_core": (5, {"steps": FEW_STEPS}),
    "structured_matrices": (3, {"steps": FEW_STEPS}),
    "pixelfly": (3, {"steps": FEW_STEPS}),
    "stochastic_depth": (5, {"steps": FEW_STEPS}),
    "layer_drop": (5, {"steps": FEW_STEPS}),
    "progressive_layer_dropping": (5, {"gamma": 4}),
    "sequence_warmup": (3, {"sequence_warmup_steps": 8}),
    "nested_model": (3, {"steps": FEW_STEPS}),
    "value_learning": (3, {"steps": FEW_STEPS}),
    "majority_kernels": (3, {"steps": FEW_STEPS}),
    "over_parameterized": (3, {"steps": FEW_STEPS}),
    "reparameterized_branches": (3, {"steps": FEW_STEPS}),
}
CHAT_RECORD = ROOT / "tests/parity/testdata/chat_example_checked.json"
CHAT_HINT = "run tests/parity/check_chat_example.py and commit its record"
# Folders that examples start from, and the examples that they are exports of.
BASES = {"base": "gpt2", "chat_base": "sft", "llama_base": "llama", "ticket": "early_bird"}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def base_of(text):
    """The folder that the job `text` starts from, or None."""
    found = re.search(r"\bimport_path: (\w+)", text)
    return found[1] if found else None


class ExampleJobs(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft_examples_"))
        self.addCleanup(shutil.rmtree, self.folder)
        shutil.copytree(ROOT / "docs/examples", self.folder / "examples")

    def weft(self, *arguments):
        result = subprocess.run(
            [WEFT, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
            timeout=120, env={**os.environ, "WEFT_HOME": str(self.folder / "home"),
                              "HOME": str(self.folder)})
        self.assertEqual(result.returncode, 0, f"{arguments}: {result.stdout}{result.stderr}")
        return result.stdout

    def kill_at(self, failpoint, *arguments):
        """SIGKILL where `failpoint`, as in trainer.before_step=crash@3, says."""
        killed = subprocess.run(
            [WEFT, *map(str, arguments)], cwd=self.folder, capture_output=True, text=True,
            timeout=120, env={**os.environ, "WEFT_HOME": str(self.folder / "home"),
                              "HOME": str(self.folder), "WEFT_FAILPOINTS": failpoint})
        self.assertLess(killed.returncode, 0, f"{arguments}: {killed.stdout}{killed.stderr}")

    def make_base(self, name):
        """A trained network, for examples that begin with one."""
        job, run = self.folder / f"examples/{BASES[name]}.yaml", self.folder / BASES[name]
        job.write_text(re.sub(r"\bsteps: \d+", "steps: 2", job.read_text()).replace(
            "warmup_steps: 20", "warmup_steps: 0"))
        self.weft("train", job, "--run-dir", run)
        self.weft("export", run, "--output", job.parent / name)

    @staticmethod
    def losses(run):
        return [json.loads(line)["loss"] for line in (run / "loss.jsonl").read_text().splitlines()]


class Examples(ExampleJobs):
    def setUp(self):
        super().setUp()
        self.untrained = {}  # losses of bases on the batches of jobs that tune them

    @staticmethod
    def shapes_in(folder):
        """Of the tensors in the safetensors of a folder, by name."""
        shapes = {}
        for path in folder.glob("*.safetensors"):
            content = path.read_bytes()
            header = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
            shapes.update((name, tensor["shape"]) for name, tensor in header.items()
                          if name != "__metadata__")
        return shapes

    def numbers_in(self, folder):
        """Of all weights in the safetensors of a folder."""
        return sum(math.prod(shape) for shape in self.shapes_in(folder).values())

    def check_compressed(self, run):
        """The matrices of its MLPs are compressed: half of the weights, and a bit for each."""
        shapes = {}
        for form in ("hf", "compressed-tensors"):
            folder = self.folder / f"{run.name}_{form}"
            self.weft("export", run, "--format", form, "--output", folder)
            shapes[form] = self.shapes_in(folder)
        compressed = shapes["compressed-tensors"]
        weights = [name for name in shapes["hf"] if re.search(r"\.mlp\.\w+\.weight$", name)]
        self.assertEqual(len(weights), 4 * 3)
        for name in weights:
            rows, columns = shapes["hf"][name]
            module = name.removesuffix(".weight")
            self.assertNotIn(name, compressed)
            self.assertEqual(compressed[module + ".compressed"], [rows, columns // 2])
            self.assertEqual(compressed[module + ".bitmask"], [rows, (columns + 7) // 8])

    def test_an_export_of_structured_matrices_says_how_many_numbers_it_has_written(self):
        for name in ("structured_matrices", "pixelfly"):
            job = self.folder / "examples" / f"{name}.yaml"
            job.write_text(re.sub(r"\bsteps: \d+", "steps: 1", job.read_text()).replace(
                "warmup_steps: 20", "warmup_steps: 0"))
            run, hf = self.folder / name, self.folder / f"{name}_hf"
            self.weft("train", job, "--run-dir", run)
            said = json.loads(self.weft("export", run, "--output", hf, "-o", "json"))
            self.assertEqual(said["parameters"], self.numbers_in(hf))

    def test_each_of_several_adapters_is_written_by_itself(self):
        self.make_base("base")
        job = self.folder / "examples/many_adapters.yaml"
        job.write_text(re.sub(r"\bsteps: \d+", "steps: 4", job.read_text()).replace(
            "warmup_steps: 20", "warmup_steps: 0"))
        run = self.folder / "several"
        said = subprocess.run([WEFT, "train", job, "--run-dir", run], capture_output=True, text=True,
                              timeout=120, env={**os.environ, "WEFT_HOME": str(self.folder / "home")})
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)
        weights = {}
        for name in ("weaving", "baking"):
            self.assertRegex(said.stdout + said.stderr, f"adapter_loss_nats:.*{name} [0-9.]+")
            folder = self.folder / f"peft_{name}"
            self.weft("export", run, "--adapter", name, "--format", "peft", "--output", folder)
            content = (folder / "adapter_model.safetensors").read_bytes()
            end = 8 + int.from_bytes(content[:8], "little")
            tensors = json.loads(content[8:end])
            # As a training of one adapter has them, whatever this one is called.
            self.assertEqual({tensor.split(".lora_")[1] for tensor in tensors if tensor != "__metadata__"},
                             {"A.weight", "B.weight"})
            self.assertEqual(len(tensors.keys() - {"__metadata__"}), 4 * 4 * 2)
            weights[name] = content[end:]
            self.weft("export", run, "--adapter", name, "--output", self.folder / f"hf_{name}")
            self.weft("generate", self.folder / f"hf_{name}", "--prompt", "The", "--tokens", 2)
        self.assertNotEqual(weights["weaving"], weights["baking"])
        for command in (["export", run, "--output", self.folder / "none"],
                        ["generate", run, "--prompt", "The", "--adapter", "fast"]):
            refused = subprocess.run([WEFT, *map(str, command)], capture_output=True, text=True)
            self.assertNotEqual(refused.returncode, 0)
            self.assertIn("--adapter with one of weaving, baking", refused.stderr)

    def check_chat(self, run):
        """It answers, and its export says how."""
        answer = json.loads(self.weft("generate", run, "--chat", "--system", "Be brief.", "--prompt",
                                      "What does math.sqrt do?", "--tokens", 4, "-o", "json"))
        self.assertLessEqual(len(answer["tokens"]), 4)
        self.assertNotIn("math.sqrt", self.weft("generate", run, "--chat", "--prompt", "math.sqrt?",
                                                "--temperature", 0, "--tokens", 1))
        hf = self.folder / "chat_hf"
        self.weft("export", run, "--output", hf)
        self.assertIn("add_generation_prompt", (hf / "chat_template.jinja").read_text())
        tokens = {token["content"]: token["id"]
                  for token in json.loads((hf / "tokenizer.json").read_text())["added_tokens"]}
        ends = json.loads((hf / "generation_config.json").read_text())["eos_token_id"]
        self.assertEqual(ends, [tokens["<|endoftext|>"], tokens["<|im_end|>"]])
        # With these files transformers has answered: they do not depend on how long was trained.
        files = {path.name: sha256(path) for path in hf.iterdir() if path.suffix != ".safetensors"}
        self.assertEqual(files, json.loads(CHAT_RECORD.read_text())["files"], CHAT_HINT)

    def test_transformers_has_answered_the_questions_of_the_chat_right_and_as_weft_does(self):
        record = json.loads(CHAT_RECORD.read_text())
        questions = ROOT / "docs/examples/questions.jsonl"
        self.assertEqual(record["example"], sha256(ROOT / "docs/examples/sft.yaml"), CHAT_HINT)
        self.assertEqual(record["questions"], sha256(questions), CHAT_HINT)
        self.assertEqual(record["asked"], len(questions.read_text().splitlines()))
        versions = [run["transformers"] for run in record["runs"]]
        for version in ("4.57.", "5."):
            self.assertTrue(any(each.startswith(version) for each in versions), versions)
        self.assertGreaterEqual(record["right_in_weft"], 0.9 * record["asked"])
        for run in record["runs"]:
            self.assertGreaterEqual(run["right"], 0.9 * record["asked"], run)
            self.assertGreaterEqual(run["same_as_weft"], 0.99 * record["asked"], run)

    def check_tuned(self, job, losses):
        """It starts as its base and learns: without updates the same batches have larger losses."""
        text = re.sub(r"learning_rate: [\d.e-]+", "learning_rate: 1.0e-12", job.read_text())
        batches = tuple(re.findall(r"^(?:data|train):.*|adapters: .*|num_virtual_tokens: .*", text,
                                   re.MULTILINE))
        if batches not in self.untrained:
            held = job.with_name(f"{job.stem}_held.yaml")
            held.write_text(text)
            run = self.folder / held.stem
            self.weft("train", held, "--run-dir", run)
            self.untrained[batches] = self.losses(run)
        untrained = self.untrained[batches]
        self.assertAlmostEqual(losses[0], untrained[0], delta=0.01)
        self.assertLess(sum(losses[-4:]), sum(untrained[-4:]))

    def check_chat_adapter(self, run, base):
        """It answers, and is an adapter of the folder that it was trained on."""
        adapter = self.folder / f"{run.name}_adapter"
        self.weft("export", run, "--format", "peft", "--output", adapter)
        config = json.loads((adapter / "adapter_config.json").read_text())
        if config["peft_type"] == "LORA":
            self.assertEqual((config["r"], config["use_rslora"]), (16, True))
        else:
            self.assertEqual((config["peft_type"], config["num_virtual_tokens"]), ("PROMPT_TUNING", 8))
        for source in ([run], [base, "--peft", adapter]):
            self.weft("generate", *source, "--chat", "--prompt", "What does math.sqrt do?",
                      "--tokens", 4)

    def check_value_learning(self, run, base):
        """Its network is one of its own, which is added to that of the training, or to another."""
        def text(source, *added):
            return self.weft("generate", source, *added, "--prompt", "The", "--tokens", 8,
                             "--temperature", 0)
        own, other = self.folder / "value", self.folder / "other"
        self.weft("export", run, "--output", own)
        self.assertEqual(text(own, "--base", base), text(run))
        self.weft("export", self.folder / "llama", "--output", other)
        self.assertEqual(text(own, "--base", other), text(run, "--base", other))

    def check_phases(self, job, text):
        """Each phase trains, grows out of the one before and does not lose what that has learnt, also
        when the second one is killed and goes on: to the curve of a run that was left alone."""
        pictures = "family: vit" in text  # tiny, and done in seconds
        phases = len(re.findall(r"\bsteps: \d+", text)) - text.count("search:")
        if not pictures:
            text = re.sub(r"\bsteps: \d+", f"steps: {STEPS}", text)
        steps = [int(each) for each in re.findall(r"(?<!search: { )\bsteps: (\d+)", text)]
        middle = steps[1] // 2
        job.write_text(re.sub(r"warmup_steps: \d+", "warmup_steps: 1", text)
                       + f"checkpoint: {{ every_steps: {middle} }}\n")
        alone, run = self.folder / f"{job.stem}_alone", self.folder / job.stem
        self.weft("train", job, "--run-dir", alone)
        # The first phase has a checkpoint in its middle and one at its end; the next is in the middle of
        # the second. Phases of image jobs are longer, and have more of them.
        self.kill_at(f"trainer.before_step=crash@{steps[0] + steps[1] * 5 // 6}" if pictures else
                     "checkpoint.after_verify=crash@3", "train", job, "--run-dir", run)
        self.assertTrue((run / "phase-1/summary.json").exists())
        self.assertFalse((run / "summary.json").exists())
        self.weft("train", job, "--run-dir", run)
        self.assertEqual(len(self.losses(run)), steps[-1])
        for curve in alone.rglob("loss.jsonl"):
            name = curve.relative_to(alone)
            self.assertEqual((run / name).read_text(), curve.read_text(), name)
        if not pictures:
            second = run / "phase-2" if phases > 2 else run
            resumed = json.loads((second / "summary.json").read_text())["resumed_from_step"]
            self.assertEqual(resumed, middle)
        summary = json.loads((run / "summary.json").read_text())["phases"]
        self.assertEqual(len(summary), phases)
        first = self.losses(run / "phase-1")[0]
        if "import_path: base" in text:  # and grows without a seam
            self.assertAlmostEqual(summary[1]["start_validation_loss_nats"],
                                   summary[0]["validation_loss_nats"], delta=0.01)
            self.assertLess(self.losses(run)[-1], first)
            return
        for phase in summary[1:]:
            if not pictures:  # which have other positions
                self.assertLess(phase["start_validation_loss_nats"], first - 0.1, phase["phase"])
            self.assertGreater(phase["training_flops"], 0)
        self.assertLess(self.losses(run)[-1], first - 0.5)
        if not re.search(r"family: (bert|vit)", text):  # which predict no next token
            self.weft("generate", run, "--prompt", "The", "--tokens", 4)

    def test_each_trains_is_of_use_and_its_loss_falls(self):
        jobs = sorted((self.folder / "examples").glob("*.yaml"))
        self.assertGreaterEqual(len(jobs), 6)
        for job in jobs:
            with self.subTest(job.name):
                text = job.read_text()
                base = base_of(text)
                if base:  # the export of an example before it
                    self.weft("export", self.folder / BASES[base], "--output", job.parent / base)
                if "phases:" in text:
                    self.check_phases(job, text)
                    continue
                if classifies := re.search(r"family: vit|head: classification", text):
                    steps = int(re.search(r"\bsteps: (\d+)", text)[1])  # tiny, and done in seconds
                else:
                    steps = STEPS
                    if "decay_search_steps" in text:  # four runs of two masks precede the training
                        text = re.sub(r"mask_interval: \d+, decay_search_steps: \d+",
                                      "mask_interval: 2, decay_search_steps: 4", text)
                        steps += 4 * 4
                    text, changed = re.subn(r"\bsteps: \d+", f"steps: {steps}", text)
                    self.assertEqual(changed, 1)
                    text = re.sub(r"warmup_steps: \d+", "warmup_steps: 2", text)
                job.write_text(text)
                run = self.folder / job.stem
                self.weft("train", job, "--run-dir", run)
                losses = self.losses(run)
                self.assertEqual(len(losses), steps)
                if base and "peft:" in text:
                    self.check_tuned(job, losses)
                elif base and base != "ticket" and "value_learning:" not in text:  # goes on
                    self.assertLess(losses[0], self.losses(self.folder / BASES[base])[0] - 0.3)
                    self.assertLess(losses[-1], losses[0])
                else:
                    self.assertLess(losses[-1], losses[0] - 0.5)
                if classifies:
                    summary = json.loads((run / "summary.json").read_text())
                    self.assertGreater(summary["validation_accuracy"], 0.6)
                if "format: chat" in text and base:
                    self.check_chat_adapter(run, job.parent / base)
                elif "format: chat" in text:
                    self.check_chat(run)
                if "value_learning:" in text:
                    self.check_value_learning(run, job.parent / "base")
                if base == "llama_base":
                    self.check_compressed(run)
                if base or re.search(r"family: (gpt2|llama)", text):
                    several = ["--adapter", "baking"] if "adapters: [" in text else []
                    self.weft("generate", run, *several, "--prompt", "The", "--tokens", 4)
                else:
                    self.weft("export", run, "--output", self.folder / "hf")


class KilledExamples(ExampleJobs):
    def test_a_killed_job_goes_on_to_the_curve_of_one_that_was_left_alone(self):
        for name, (step, fields) in KILLED.items():
            with self.subTest(name):
                self.check(name, step, {"steps": STEPS, "warmup_steps": 2, **fields})

    def check(self, name, step, fields):
        job = self.folder / "examples" / f"{name}.yaml"
        text = job.read_text()
        base = base_of(text)
        if base and not (job.parent / base).exists():
            self.make_base(base)
        for field, value in fields.items():
            text, changed = re.subn(rf"\b{field}: [\d.]+", f"{field}: {value}", text)
            self.assertEqual(changed, 1, field)
        # The first one is the only one that a killed run has: it dies once that is verified.
        job.write_text(text + f"checkpoint: {{ every_steps: {step} }}\n")
        alone, killed = self.folder / name, self.folder / f"{name}_killed"
        self.weft("train", job, "--run-dir", alone)
        self.assertEqual(len(self.losses(alone)), fields["steps"])
        self.kill_at("checkpoint.after_verify=crash@1", "train", job, "--run-dir", killed)
        self.assertFalse((killed / "summary.json").exists())
        self.weft("train", job, "--run-dir", killed)
        self.assertEqual(json.loads((killed / "summary.json").read_text())["resumed_from_step"], step)
        # Losses and rates of all steps, as they are written: to the last bit.
        self.assertEqual((killed / "loss.jsonl").read_text(), (alone / "loss.jsonl").read_text())


class ExamplesOnRanks(unittest.TestCase):
    def test_ranks_of_a_cluster_share_updates_and_matrices(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        shutil.copytree(ROOT / "docs/examples", cluster.folder, dirs_exist_ok=True)
        up = cluster.up()
        self.assertEqual(up.code, 0, up.out + up.err)
        for path in ("shared_updates.yaml", "cluster/shared_parameters.yaml",
                     "cluster/tensor_parallel.yaml", "cluster/pipeline_parallel.yaml",
                     "cluster/context_parallel.yaml", "cluster/expert_parallel.yaml",
                     "cluster/local_steps.yaml", "cluster/sub_networks.yaml",
                     "cluster/unequal_peers.yaml",
                     "cluster/offloaded_updates.yaml"):
            with self.subTest(path):
                job = cluster.folder / path
                text = re.sub(r"\bsteps: \d+", f"steps: {STEPS}", job.read_text())
                text = re.sub(r"warmup_steps: \d+", "warmup_steps: 2", text)
                if "ranks:" not in text:
                    text = text.replace("resources: { ", "resources: { ranks: 2, ")
                job.write_text(text)
                name = cluster.submit(job)
                waited = cluster.weft("job", "wait", name)
                described = cluster.weft("job", "describe", name).out
                self.assertEqual(waited.code, 0, waited.out + waited.err + described)
                self.assertIn("2 ranks", described)
                generated = cluster.weft("generate", name, "--prompt", "The", "--tokens", 4)
                self.assertEqual(generated.code, 0, generated.out + generated.err)


if __name__ == "__main__":
    unittest.main()
