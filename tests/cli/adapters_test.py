"""Adapters as files: trained on a folder, exported, loaded again; the folder never changes, and one that
has changed, or another network, is refused."""

import hashlib
import json
import shutil
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
        content = weights.read_bytes()
        weights.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        refused = self.export("tuned", "late", "--format", "peft", code=USAGE)
        self.assertIn("no longer those that the adapter was trained on", refused.err)
        for command in (("export", "./tuned", "--output", "late"), ("ckpt", "verify", "./tuned"),
                        ("generate", "./tuned", "--prompt", "the")):
            refused = self.cluster.weft(*command)
            self.assertEqual(refused.code, USAGE, refused.out + refused.err)
            self.assertIn("leaves out the frozen weights of", refused.err)
            self.assertIn("are no longer those", refused.err)
            self.assertFalse((self.cluster.folder / "late").exists())

        # The adapter alone does not need its network, and the network comes back as it was.
        moved = (self.cluster.folder / "base-hf").rename(self.cluster.folder / "elsewhere")
        self.export("tuned", "alone", "--format", "peft")
        self.assertNotIn("base_model_sha256", self.metadata("alone"))
        self.assertEqual(self.by_name("alone"), self.by_name("adapter"))
        refused = self.export("tuned", "late", code=USAGE)
        self.assertIn("and there is no folder", refused.err)
        moved.rename(self.cluster.folder / "base-hf")
        weights.write_bytes(content)
        verified = self.cluster.weft("ckpt", "verify", "./tuned")
        self.assertEqual(verified.code, 0, verified.err)
        self.assertIn("and that of the frozen weights in", verified.out)
        self.export("tuned", "merged")
        text = self.cluster.weft("generate", "./merged", "--prompt", "the", "--tokens", "4")
        self.assertEqual(text.code, 0, text.err)

    def tensors(self, folder):
        """The header of the adapter in a folder, without metadata, and its bytes."""
        content = (self.cluster.folder / folder / "adapter_model.safetensors").read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8:8 + size])
        header.pop("__metadata__", None)
        return header, content[8 + size:]

    def write_tensors(self, folder, header, data):
        text = json.dumps(header).encode()
        (self.cluster.folder / folder / "adapter_model.safetensors").write_bytes(
            len(text).to_bytes(8, "little") + text + data)

    def copy(self, folder, name):
        shutil.copytree(self.cluster.folder / folder, self.cluster.folder / name)

    def test_an_adapter_and_its_base_make_the_trained_network_without_a_training(self):
        self.train("tuned", {"method": "lora", "rank": 4, "target_modules": ["all-linear"]})
        self.export("tuned", "adapter", "--format", "peft")
        self.export("tuned", "merged")
        before = self.hashes("base-hf")
        self.export("base-hf", "merged-here", "--peft", "adapter")
        self.assertEqual(self.hashes("merged-here")["model.safetensors"],
                         self.hashes("merged")["model.safetensors"])
        self.assertNotEqual(self.hashes("merged-here")["model.safetensors"], before["model.safetensors"])
        self.assertEqual(self.hashes("base-hf"), before)

        def text(*source):
            result = self.cluster.weft("generate", *source, "--prompt", "the", "--tokens", "12",
                                       "--temperature", "0")
            self.assertEqual(result.code, 0, result.err)
            return result.out
        self.assertEqual(text("./base-hf", "--peft", "adapter"), text("./tuned"))

        # The adapter by itself is what it was, in BF16 too.
        header, data = self.tensors("adapter")
        halves = {}
        for name, entry in sorted(header.items()):
            begin, end = entry["data_offsets"]
            part = b"".join(data[i + 2:i + 4] for i in range(begin, end, 4))
            first = sum(len(each) for _, each in halves.values())
            halves[name] = ({"dtype": "BF16", "shape": entry["shape"],
                             "data_offsets": [first, first + len(part)]}, part)
        self.copy("adapter", "brain")
        self.write_tensors("brain", {name: entry for name, (entry, _) in halves.items()},
                           b"".join(part for _, part in halves.values()))
        for folder in ("adapter", "brain"):
            self.export("base-hf", folder + "-again", "--peft", folder, "--format", "peft")
            self.assertEqual(*(self.by_name(each) for each in (folder, folder + "-again")))
        refused = self.export("base-hf", "typed", "--peft", "brain", "--format", "peft", "--dtype", "float32",
                              code=USAGE)
        self.assertIn("in the types of its file\nhint: leave --dtype out", refused.err)

    def by_name(self, folder):
        header, data = self.tensors(folder)
        return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
                for name, entry in header.items()}

    def test_an_adapter_that_does_not_belong_to_the_base_is_refused(self):
        self.train("tuned", {"method": "lora", "rank": 4, "target_modules": ["all-linear"]}, steps=2)
        self.export("tuned", "adapter", "--format", "peft")

        def refuse(words, source="./base-hf", peft="adapter"):
            for command in (("export", source, "--output", "refused"), ("generate", source, "--prompt", "a")):
                result = self.cluster.weft(*command, "--peft", peft)
                self.assertEqual(result.code, USAGE, result.out + result.err)
                self.assertIn(words, result.err)
                self.assertFalse((self.cluster.folder / "refused").exists())
        refuse("was trained on other weights (base_model_sha256 ", source="./other-hf")
        refuse("./tuned is no Hugging Face folder, and --peft adapts the network of one", source="./tuned")
        header, data = self.tensors("adapter")
        name = next(each for each in header if each.endswith("lora_A.weight"))
        for folder, words, change in (
                ("unknown", "must be the adapter's base model", ("lora_A", "lora_Z")),
                ("outside", "adapts lm_head, and adapters are trained on linear layers",
                 (name, "base_model.model.lm_head.lora_A.weight"))):
            self.copy("adapter", folder)
            renamed = {(each.replace(*change) if each == name else each): entry
                       for each, entry in header.items()}
            self.write_tensors(folder, renamed, data)
            refuse(words, peft=folder)
        self.copy("adapter", "cut")
        weights = self.cluster.folder / "cut/adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])
        refuse("copy or export the folder again", peft="cut")
        self.copy("adapter", "shapes")
        config = self.cluster.folder / "shapes/adapter_config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "r": 5}))
        refuse("but the model needs F32 [5, ", peft="shapes")


if __name__ == "__main__":
    unittest.main()
