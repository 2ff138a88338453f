"""Adapters as files: trained on a folder, exported, loaded again; the folder never changes, and one that
has changed, or another network, is refused."""

import hashlib
import json
import unittest

from weft_cluster import Cluster

USAGE = 2


class Adapters(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        for name, seed in (("base", 1), ("other", 2)):
            self.train(name, steps=4, seed=seed)
            self.export(name, name + "-hf")

    def train(self, name, peft=None, base="base-hf", code=0, quantized="none", **train):
        path = self.cluster.job(name, **train)
        job = json.loads(path.read_text())
        if peft:
            job["model"] = {"import_path": base, "peft": peft,
                            "weight_quantization": {"type": quantized}}
            job["data"]["tokenizer"] = {"path": base}
            job["train"]["sequence_length"] = 32
        path.write_text(json.dumps(job))
        result = self.cluster.weft("train", path, "--run-dir", name)
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def export(self, run, output, *options, code=0):
        result = self.cluster.weft("export", f"./{run}", "--output", output, *options)
        self.assertEqual(result.code, code, result.out + result.err)
        return result

    def hashes(self, folder):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
                for path in (self.cluster.folder / folder).iterdir()}

    def metadata(self, folder):
        content = (self.cluster.folder / folder / "adapter_model.safetensors").read_bytes()
        return json.loads(content[8:8 + int.from_bytes(content[:8], "little")])["__metadata__"]

    def loss(self, run, step):
        lines = (self.cluster.folder / run / "loss.jsonl").read_text().splitlines()
        return json.loads(lines[step])["loss"]

    def test_the_base_stays_whatever_is_made_of_its_weights_in_memory(self):
        lora = {"method": "lora", "rank": 4, "target_modules": ["all-linear"]}
        before = self.hashes("base-hf")
        hashes = set()
        for name, peft, quantized in (("plain", lora, "none"), ("dora", {**lora, "use_dora": True}, "none"),
                                      ("pissa", {**lora, "init": "pissa"}, "none"),
                                      ("qpissa", {**lora, "init": "pissa"}, "nf4"),
                                      ("qlora", lora, "nf4"), ("vera", {**lora, "method": "vera"}, "none")):
            with self.subTest(name):
                self.train(name, peft, quantized=quantized, steps=2)
                self.export(name, name + "-adapter", "--format", "peft")
                self.assertEqual(self.hashes("base-hf"), before)
                hashes.add(self.metadata(name + "-adapter")["base_model_sha256"])
        self.assertEqual(len(hashes), 1)

    def test_the_base_stays_and_a_changed_one_or_another_is_refused(self):
        lora = {"method": "lora", "rank": 4, "target_modules": ["all-linear"]}
        before = self.hashes("base-hf")
        self.train("tuned", lora, precision="bf16")
        self.export("tuned", "adapter", "--format", "peft")
        self.assertEqual(self.hashes("base-hf"), before)
        base_hash = self.metadata("adapter")["base_model_sha256"]
        self.assertEqual(len(base_hash), 64)

        # Loaded again it is what was trained: merged by itself and with the base.
        again = {**lora, "import_path": "adapter"}
        self.train("again", again, precision="bf16", steps=2)
        self.assertLess(self.loss("again", 0), self.loss("tuned", 0) - 0.1)
        self.export("again", "adapter-again", "--format", "peft")
        self.assertEqual(self.metadata("adapter-again")["base_model_sha256"], base_hash)

        refused = self.train("wrong", again, base="other-hf", code=USAGE, steps=2)
        self.assertIn("was trained on other weights (base_model_sha256 " + base_hash, refused.err)

        weights = self.cluster.folder / "base-hf/model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-3] ^= 1
        weights.write_bytes(content)
        refused = self.export("tuned", "late", "--format", "peft", code=USAGE)
        self.assertIn("no longer those that the adapter was trained on", refused.err)
        self.assertFalse((self.cluster.folder / "late").exists())
        self.export("tuned", "merged")
        text = self.cluster.weft("generate", "./merged", "--prompt", "the", "--tokens", "4")
        self.assertEqual(text.code, 0, text.err)


if __name__ == "__main__":
    unittest.main()
