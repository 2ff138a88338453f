"""BERT and ViT as jobs: trained, followed, exported, imported with the same head and with a new one; and
what of an import's use survives until the export."""

import json
import pathlib
import shutil
import unittest

from weft_cluster import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs/examples"


class Encoders(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        shutil.copytree(EXAMPLES, self.cluster.folder, dirs_exist_ok=True)

    def job(self, name, model, data, steps=30, **train):
        """A job file of a small network."""
        path = self.cluster.folder / f"{name}.json"
        path.write_text(json.dumps({
            "name": name,
            "model": {"layers": 2, "width": 64, "heads": 2, "context": 32, **model},
            "data": data,
            "optimizer": {"learning_rate": 3e-3},
            "schedule": {"kind": "constant", "warmup_steps": 2},
            "train": {"steps": steps, "global_batch": 16, "precision": "fp32", **train},
        }))
        return path

    TOPICS = {"train": ["topics.jsonl"], "label_field": "topic", "batching": "pad_uniform",
              "validation_fraction": 0.2}
    SHAPES = {"train": ["shapes-images-idx3-ubyte.gz"], "validation_fraction": 0.2}
    VIT = {"family": "vit", "image_size": 12, "patch_size": 3, "image_channels": 1}

    def train(self, path, code=0):
        result = self.cluster.weft("train", path, "--run-dir", path.stem)
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def summary(self, name):
        return json.loads((self.cluster.folder / name / "summary.json").read_text())

    def export(self, run, output):
        result = self.cluster.weft("export", f"./{run}", "--output", output)
        self.assertEqual(result.code, 0, result.out + result.err)
        return json.loads((self.cluster.folder / output / "config.json").read_text())

    def test_what_an_import_says_of_its_use_survives(self):
        model = self.cluster.folder / "model"
        shutil.copytree(ROOT / "tests/parity/testdata/gpt2/imported", model)
        end = json.loads((model / "config.json").read_text())["eos_token_id"]
        (model / "generation_config.json").write_text(json.dumps(
            {"eos_token_id": [end, 1], "bos_token_id": end, "temperature": 0.6, "do_sample": True}))
        (model / "tokenizer_config.json").write_text(json.dumps(
            {"eos_token": "<|endoftext|>", "chat_template": "{{ messages }}", "padding_side": "left",
             "truncation_side": "left"}))
        path = self.job("tuned", {"import_path": "model"},
                        {"train": ["text.txt"], "tokenizer": {"path": "model"}}, steps=3)
        job = json.loads(path.read_text())
        job["model"] = {"import_path": "model"}
        path.write_text(json.dumps(job))
        self.train(path)
        shutil.rmtree(model)  # the run folder alone is enough
        result = self.cluster.weft("export", "./tuned", "--output", "hf", "--dtype", "bfloat16")
        self.assertEqual(result.code, 0, result.out + result.err)
        folder = self.cluster.folder / "hf"
        config, generation, tokens = (json.loads((folder / f"{name}.json").read_text()) for name in (
            "config", "generation_config", "tokenizer_config"))
        self.assertEqual(generation, {"eos_token_id": [end, 1], "bos_token_id": end,
                                      "temperature": 0.6, "do_sample": True})
        self.assertEqual((config["torch_dtype"], config["eos_token_id"]), ("bfloat16", [end, 1]))
        self.assertEqual(tokens["chat_template"], "{{ messages }}")
        self.assertEqual(tokens["padding_side"], "left")
        self.assertEqual(tokens["model_input_names"], ["input_ids", "attention_mask"])
        self.assertEqual(tokens["truncation_side"], "left")

    def test_rows_with_nothing_to_predict_are_left_out_and_said(self):
        rows = [{"text": text} for text in ["kalo the mi"] * 20 + ["\u9f98\u9f98"]]
        (self.cluster.folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        data = {"train": ["rows.jsonl"], "batching": "pad_uniform", "validation_fraction": 0,
                "tokenizer": {"path": str(ROOT / "common/formats/testdata/tokenizers/bert.json")}}
        result = self.train(self.job("mlm", {"family": "bert", "head": "masked_lm"}, data, steps=2))
        self.assertIn("1 of 21 training sequences are left out: they are special tokens alone (unknown "
                      "ones among them) and have nothing to predict", result.out)

    def test_masked_words_then_classes_from_what_was_learnt(self):
        data = {"train": ["text.txt"], "tokenizer": {"vocab_size": 300}}
        self.train(self.job("mlm", {"family": "bert"}, data, steps=150))
        mlm = self.summary("mlm")
        self.assertLess(mlm["validation_loss_nats"], mlm["unigram_entropy_nats"])
        self.assertNotIn("validation_accuracy", mlm)
        self.assertEqual(self.export("mlm", "hf")["architectures"], ["BertForMaskedLM"])
        tokens = json.loads((self.cluster.folder / "hf/tokenizer_config.json").read_text())
        self.assertEqual(tokens["mask_token"], "<mask>")
        refused = self.cluster.weft("generate", "./mlm", "--prompt", "the")
        self.assertEqual(refused.code, 2, refused.out)
        self.assertIn("does not continue text", refused.err)

        model = {"import_path": "hf", "head": "classification"}
        job = self.job("topics", model, {**self.TOPICS, "tokenizer": {"path": "hf"}}, steps=120)
        result = self.train(job)
        self.assertIn("hf has no classifier of 3 classes: it starts from random weights",
                      result.out)
        self.assertRegex(result.out, r"accuracy \d+\.\d%")
        self.assertRegex(result.out, r"validation after step 120: loss \d\.\d+, accuracy \d+\.\d%")
        summary = self.summary("topics")
        self.assertGreater(summary["validation_accuracy"], 0.6)
        self.assertGreater(summary["train_accuracy"], 0.5)
        curve = (self.cluster.folder / "topics/loss.jsonl").read_text().splitlines()
        self.assertIn("accuracy", json.loads(curve[-1]))

        config = self.export("topics", "classes")
        self.assertEqual(config["architectures"], ["BertForSequenceClassification"])
        self.assertEqual(config["id2label"], {"0": "baking", "1": "sailing", "2": "weaving"})

        # What it has learnt is where the next job starts, as long as its classes mean the same.
        model = {"import_path": "classes"}
        data = {**self.TOPICS, "tokenizer": {"path": "classes"}}
        result = self.train(self.job("again", model, data, steps=2))
        self.assertNotIn("random weights", result.out)
        self.assertGreater(self.summary("again")["train_accuracy"], 0.6)
        renamed = (self.cluster.folder / "topics.jsonl").read_text().replace("baking", "tailoring")
        (self.cluster.folder / "renamed.jsonl").write_text(renamed)
        result = self.train(self.job("other", model, {**data, "train": ["renamed.jsonl"]}), code=2)
        self.assertIn("(sailing, tailoring, weaving) is none of the model", result.err)
        self.assertIn("(baking, sailing, weaving)", result.err)

    def test_images(self):
        self.train(self.job("vit", self.VIT, self.SHAPES, steps=120))
        self.assertGreater(self.summary("vit")["validation_accuracy"], 0.6)
        config = self.export("vit", "hf")
        self.assertEqual(config["architectures"], ["ViTForImageClassification"])
        self.assertEqual(config["id2label"], {str(i): str(i) for i in range(4)})
        pixels = json.loads((self.cluster.folder / "hf/preprocessor_config.json").read_text())
        self.assertEqual((pixels["image_mean"], pixels["image_std"]), ([0.5], [0.5]))

        more = self.job("more", {"import_path": "hf", "classes": 6}, self.SHAPES, steps=2)
        self.assertIn("no classifier of 6 classes", self.train(more).out)
        result = self.train(self.job("few", {**self.VIT, "classes": 3}, self.SHAPES), code=2)
        self.assertIn("the data have 4 classes (0, 1, 2, 3), the model only 3", result.err)
        result = self.train(self.job("words", self.VIT, {"train": ["weaving.txt"]}), code=2)
        self.assertIn("images are for vit", result.err)
        budget = self.cluster.weft("plan", "vit.json", "--budget", "1e15")
        self.assertEqual(budget.code, 2, budget.out)
        self.assertIn("causal language models", budget.err)

    def test_a_stopped_run_goes_on_as_if_nothing_had_happened(self):
        for name, model, data in (("bert", {"family": "bert"}, {"train": ["weaving.txt"], "tokenizer":
                                   {"vocab_size": 300}, "validation_fraction": 0.2}),
                                  ("vit", self.VIT, self.SHAPES)):
            whole = self.job(name, model, data, steps=8)
            self.train(whole)
            spec = json.loads(whole.read_text())
            spec["checkpoint"] = {"every_steps": 4}
            parts = self.cluster.folder / f"{name}-parts.json"
            parts.write_text(json.dumps(spec))
            run = self.cluster.folder / parts.stem
            self.train(parts)
            newest = max((run / "checkpoints").iterdir())
            shutil.rmtree(newest)
            again = self.train(parts)
            self.assertIn("resumed from", again.out)
            self.assertEqual((run / "loss.jsonl").read_text(),
                             (self.cluster.folder / name / "loss.jsonl").read_text())
            self.assertEqual(self.summary(parts.stem)["validation_loss_nats"],
                             self.summary(name)["validation_loss_nats"])


if __name__ == "__main__":
    unittest.main()
