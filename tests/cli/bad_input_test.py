"""Broken and hostile input at the command line: each gets a clear error and the documented exit
code, and leaves nothing half done."""

import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import unittest

from weft_cluster import Cluster

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMPORTED = ROOT / "tests/parity/testdata/gpt2/imported"

FAILED, USAGE, NOT_FOUND, UNAVAILABLE, EXHAUSTED = 1, 2, 3, 6, 7


def safetensors(header, data=b""):
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text)) + text + data


class BadInput(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        self.folder = self.cluster.folder

    def expect(self, code, words, *arguments, absent=(), **options):
        """Runs weft and looks at exit code, message and what must not be there afterwards."""
        result = self.cluster.weft(*arguments, **options)
        self.assertEqual(result.code, code, f"{arguments}: {result.out}{result.err}")
        self.assertIn(words, result.err)
        self.assertLess(len(result.err), 2000, "an error fits a screen")
        for name in absent:
            self.assertFalse((self.folder / name).exists(), f"{arguments} left {name}")
        return result

    def model_folder(self, **files):
        """A copy of the sound Hugging Face folder with some files replaced (None: removed)."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(IMPORTED, folder)
        for name, content in files.items():
            path = folder / {"weights": "model.safetensors"}.get(name, f"{name}.json")
            path.unlink()
            if content is not None:
                path.write_bytes(content)
        return folder

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def test_hugging_face_folders(self):
        sound = (IMPORTED / "model.safetensors").read_bytes()
        size, = struct.unpack("<Q", sound[:8])
        header, data = json.loads(sound[8:8 + size]), sound[8 + size:]
        name = next(key for key in header if key != "__metadata__")
        config = json.loads((IMPORTED / "config.json").read_text())

        def tensor(**changes):
            return safetensors({**header, name: {**header[name], **changes}}, data)

        def with_config(**changes):
            return json.dumps({**config, **changes}).encode()

        for code, words, files in [
                (FAILED, "shorter than 8 bytes", {"weights": b""}),
                (FAILED, "ends past the end of the file", {"weights": sound[:-100]}),
                (FAILED, "header of", {"weights": struct.pack("<Q", 1 << 62) + sound[8:]}),
                (FAILED, "header", {"weights": sound[:8 + size // 2]}),
                (FAILED, "header", {"weights": safetensors(b"[" * 50000)}),
                (FAILED, "nested deeper than 32 levels", {"weights": safetensors(b'{"a":' * 50000)}),
                (FAILED, "ends past", {"weights": tensor(data_offsets=[0, 1 << 40])}),
                (FAILED, "overlap", {"weights": tensor(data_offsets=[1 << 63, 0])}),
                (FAILED, "overflows", {"weights": tensor(shape=[1 << 62, 1 << 62])}),
                (FAILED, name, {"weights": tensor(shape=[-1, 4])}),
                (FAILED, name, {"weights": tensor(dtype="F7")}),
                (USAGE, "missing", {"weights": safetensors({})}),
                (USAGE, "has no model.safetensors", {"weights": None}),
                (USAGE, "git lfs pull", {"weights": b"version https://git-lfs.github.com/spec/v1\n"}),
                (USAGE, "NUL byte", {"config": bytes(range(256))}),
                (USAGE, "nested deeper than 64 levels", {"config": b"[" * 200000}),
                (USAGE, "n_layer", {"config": with_config(n_layer=10**30)}),
                (USAGE, "n_layer", {"config": with_config(n_layer="two")}),
                (USAGE, "n_layer", {"config": with_config(n_layer=None)}),
                (USAGE, "t5", {"config": with_config(model_type="t5")}),
                (USAGE, "but the model needs", {"config": with_config(n_embd=32)}),
                (USAGE, "nested deeper than 16 levels", {"tokenizer": b'{"model":' * 100000}),
                (USAGE, "tokenizer", {"tokenizer": b'{"model": {"type": "WordPiece"}}'}),
                (USAGE, "tokenizer", {"tokenizer": b""}),
                (USAGE, "tokenizer.json", {"tokenizer": None}),
        ]:
            with self.subTest(words=words, files={k: (v or b"")[:60] for k, v in files.items()}):
                folder = self.model_folder(**files)
                self.expect(code, words, "generate", f"./{folder.name}", "--prompt", "a")
                self.expect(code, words, "export", f"./{folder.name}", "--format", "hf",
                            "--output", "exported", absent=["exported"])

    def test_chats(self):
        folder = self.model_folder()
        asked = ("generate", f"./{folder.name}", "--prompt", "a")
        self.expect(USAGE, "has no chat template", *asked, "--chat")
        self.expect(USAGE, "--system requires --chat", *asked, "--system", "b")
        self.expect(USAGE, "--chat needs what the user says", *asked[:2], "--chat")
        for template, words in [
                ("{% for", "line 1: "), ("{{ messages[0].nothing.x }}", "is undefined"),
                ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
                ("{{ 'x' * 10000000000 }}", "a text of more than")]:
            with self.subTest(template=template):
                (folder / "chat_template.jinja").write_text(template)
                self.expect(USAGE, words, *asked, "--chat")
        (folder / "chat_template.jinja").unlink()

        def refuse(words, line, **data):
            (self.folder / "chats.jsonl").write_text(line + "\n")
            path = self.folder / "chats.json"
            path.write_text(json.dumps({"name": "chats", "data": {"train": ["chats.jsonl"], "format": "chat", **data},
                                        "train": {"steps": 2, "global_batch": 2}, "schedule": {"warmup_steps": 1}}))
            for command in (["train", path, "--run-dir", "run"], ["submit", path, "--dry-run"]):
                self.expect(USAGE, words, *command, absent=["run"])

        good = json.dumps({"messages": [{"role": "user", "content": "a"}]})
        refuse("chats.jsonl:1: no field \"messages\"", "{}")
        refuse("message 1 has no string \"role\"", '{"messages": [{"content": "a"}]}')
        refuse("data.chat_template: line 1: ", good, chat_template="{{ a b }}")
        refuse("neither Jinja nor the path of a file", good, chat_template="none.jinja")
        refuse("data.loss_on completions needs", good, format="text", loss_on="completions")
        refuse("data.chat_template is for data.format chat", good, format="alpaca", chat_template="{{ a }}")

    def test_folders_without_a_model(self):
        self.expect(NOT_FOUND, "there is no folder ./nothing", "export", "./nothing", "--output",
                    "exported", absent=["exported"])
        folder = self.model_folder(config=None)
        (folder / "adapter_model.safetensors").write_bytes(b"x")
        self.expect(USAGE, "a PEFT adapter", "export", f"./{folder.name}", "--output", "exported",
                    absent=["exported"])

    def test_a_tokenizer_that_does_not_fit_the_imported_model(self):
        start = ROOT / "tests/parity/testdata/gpt2/start"  # 67 rows of embedding
        path = self.folder / "import.json"
        job = {"name": "import", "model": {"import_path": str(start)},
               "data": {"train": ["text.txt"], "tokenizer": {"path": str(IMPORTED)}},
               "train": {"steps": 2, "global_batch": 2}, "schedule": {"warmup_steps": 1}}
        path.write_text(json.dumps(job))
        self.expect(USAGE, "the model's vocabulary only 67", "train", path, "--run-dir", "run",
                    absent=["run/checkpoints", "run/summary.json"])
        del job["data"]["tokenizer"]
        path.write_text(json.dumps(job))
        self.expect(USAGE, "mean nothing with another tokenizer", "submit", path, "--dry-run")

    def test_job_files(self):
        good = json.loads(self.cluster.job().read_text())
        bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 10)}]\n"
            for i in range(9))
        for words, text in [
                ("is empty", ""),
                ("nested deeper", "a: &a [*a]\n"),
                ("nested deeper", "[" * 100000),
                ("nested deeper", '{"a":' * 100000),
                ("expands to more than", bomb),
                ("at most", "name: " + "a" * (5 << 20)),
                ("given twice", "name: a\nname: b\n"),
                ("binary data", b"name: \0\1\2"),
                ("did you mean 'train'", json.dumps({**good, "trian": {}})),
                ("did you mean 'layers'", json.dumps({**good, "model": {"layer": 2}})),
                ("train.steps", json.dumps({**good, "train": {"steps": 1e30}})),
                ("train.steps", json.dumps({**good, "train": {"steps": -1}})),
                ("model.width", json.dumps({**good, "model": {"width": "wide"}})),
                ("data.train", json.dumps({**good, "data": {"train": "text.txt"}})),
                ("name", json.dumps({**good, "name": "../../etc"})),
        ]:
            with self.subTest(words=words, text=text[:60]):
                path = self.write("bad.yaml", text)
                self.expect(USAGE, words, "submit", path, "--dry-run")
                self.expect(USAGE, words, "train", path, "--run-dir", "run", absent=["run"])
        self.expect(USAGE, "Is a directory", "submit", self.folder, "--dry-run")
        self.expect(USAGE, "not a known field", "plan", self.cluster.job(), "--cluster",
                    self.write("cluster.yaml", "wrokers: []\n"))

    def test_training_text(self):
        for code, words, name, content in [
                (USAGE, "is empty", "empty.txt", b""),
                (USAGE, "is not text", "binary.txt", bytes(range(256)) * 64),
                (USAGE, ":2: not valid JSON", "cut.jsonl", b'{"text": "a"}\n{"text": \n'),
                (USAGE, ":1: ", "deep.jsonl", b"[" * 100000 + b"\n"),
                (USAGE, "is not a string", "number.jsonl", b'{"text": 3}\n'),
                (USAGE, "text", "nofield.jsonl", b'{"body": "x"}\n'),
                (NOT_FOUND, "none.txt", "none.txt", None),
        ]:
            with self.subTest(name=name):
                if content is not None:
                    self.write(name, content)
                self.expect(code, words, "tokenizer", "train", name, "--vocab-size", "300",
                            "--output", "tokenizer", absent=["tokenizer/tokenizer.json"])
                path = self.cluster.job()
                job = json.loads(path.read_text())
                job["data"]["train"] = [name]
                path.write_text(json.dumps(job))
                # Of a job a missing file is a mistake of the job file.
                self.expect(USAGE, words, "train", path, "--run-dir", "run",
                            absent=["run/checkpoints", "run/summary.json"])

    def test_memory_that_nothing_fits_in(self):
        path = self.cluster.job()
        job = json.loads(path.read_text())
        job["resources"] = {"memory_per_rank_bytes": 1 << 20}
        path.write_text(json.dumps(job))
        result = self.expect(EXHAUSTED, "no plan fits", "train", path, "--run-dir", "run",
                             absent=["run"])
        self.assertIn("more than resources.memory_per_rank_bytes allows", result.err)
        self.assertIn("hint: ", result.err)

    def test_a_full_disk(self):
        disk = self.folder / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk],
                                 capture_output=True, text=True)
        if mounted.returncode != 0:
            self.skipTest("no tmpfs can be mounted here (needs root): " + mounted.stderr)
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        (disk / "filler").write_bytes(b"x" * (40 << 10))
        self.expect(EXHAUSTED, "No space left", "export", IMPORTED, "--format", "hf", "--output",
                    "disk/hf", absent=["disk/hf/config.json", "disk/hf/model.safetensors"])
        result = self.cluster.weft("train", self.cluster.job(), "--run-dir", "disk/run")
        self.assertEqual(result.code, EXHAUSTED, result.out + result.err)
        self.assertIn("No space left", result.err)
        self.assertFalse((disk / "run/summary.json").exists())
        left = [path for path in disk.rglob("*") if "tmp" in path.name]
        self.assertEqual(left, [], "nothing half written stays")

    def test_ports_in_use(self):
        taken = socket.socket()
        self.addCleanup(taken.close)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        binaries = pathlib.Path(os.environ["WEFT_BIN"])
        for program, arguments in [
                ("weft-coordinator", ["--listen", address, "--metrics-listen", ""]),
                ("weft-coordinator", ["--listen", "127.0.0.1:0", "--metrics-listen", address]),
                ("weft-worker", ["--metrics-listen", address]),
        ]:
            with self.subTest(program=program, arguments=arguments):
                done = subprocess.run(
                    [binaries / program, "--data-dir", self.folder / program, "--run-root",
                     self.folder / "runs", *arguments],
                    capture_output=True, text=True, timeout=60)
                self.assertEqual(done.returncode, UNAVAILABLE, done.stdout + done.stderr)
                self.assertIn(address, done.stderr)
                self.assertNotIn("ready", done.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
