"""The command line as a user meets it: real daemons, real jobs, exit codes, output forms."""

import fcntl
import json
import os
import pathlib
import pty
import re
import socket
import struct
import subprocess
import termios
import time
import unittest

from weft_cluster import BIN, Cluster


def read_matrix(path, name):
    """Rows of a matrix in f32 whose name ends so."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    tensors = json.loads(content[8:start])
    entry = next(entry for key, entry in tensors.items() if key.endswith(name))
    rows, columns = entry["shape"]
    begin, end = entry["data_offsets"]
    numbers = struct.unpack(f"<{rows * columns}f", content[start + begin:start + end])
    return [list(numbers[row * columns:(row + 1) * columns]) for row in range(rows)]


def rank_of(matrix, smallest=1e-5):
    """By elimination with the largest pivots; what is below this share of the first one is rounding."""
    rows = [row[:] for row in matrix]
    first = max(abs(number) for row in rows for number in row)
    for rank in range(min(len(rows), len(rows[0]))):
        pivot, row, column = max((abs(number), i, j) for i, numbers in enumerate(rows)
                                 for j, number in enumerate(numbers))
        if pivot <= smallest * first:
            return rank
        chosen = rows.pop(row)
        rows = [[number - numbers[column] / chosen[column] * other
                 for number, other in zip(numbers, chosen)] for numbers in rows]
    return min(len(matrix), len(matrix[0]))


class WithoutCluster(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)

    def test_no_coordinator_is_exit_6_with_a_hint(self):
        result = self.cluster.weft("--timeout", "1", "ls")
        self.assertEqual(result.code, 6)
        self.assertIn("no coordinator answers", result.err)
        self.assertIn("hint: `weft up`", result.err)

    def test_bad_usage_and_bad_job_files_are_exit_2(self):
        cluster = self.cluster
        self.assertEqual(cluster.weft("no-such-command").code, 2)
        path = cluster.job()
        job = json.loads(path.read_text())
        job["train"]["step"] = 5
        path.write_text(json.dumps(job))
        result = cluster.weft("submit", path)
        self.assertEqual(result.code, 2)
        self.assertIn("train.step is not a known field; did you mean 'steps'?", result.err)
        error = cluster.weft("submit", path, "-o", "json").json()
        self.assertEqual((error["kind"], error["code"]), ("Error", "INVALID"))
        self.assertEqual(cluster.weft("submit", "missing.yaml").code, 3)
        self.assertEqual(cluster.weft("submit", "-", stdin="\0\0").code, 2)

    def test_dry_run_prints_every_default(self):
        result = self.cluster.weft("submit", self.cluster.job(), "--dry-run")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("gradient_clip_norm: 1.0", result.out)

    def test_unknown_words_have_a_nearest_one(self):
        for words, nearest, where in [
                (["sumbit", "a.yaml"], "submit", "`weft`"),
                (["job", "cancle", "x"], "cancel", "`weft job`"),
                (["submit", "a.yaml", "--folow"], "--follow", "`weft submit`"),
                (["--servr", "x:1", "ls"], "--server", "`weft`"),
                (["job", "wait", "x", "--tiemout=3"], "--timeout", "`weft job wait`")]:
            with self.subTest(words=words):
                result = self.cluster.weft(*words)
                self.assertEqual(result.code, 2)
                self.assertIn(f"hint: did you mean '{nearest}'?", result.err)
                self.assertIn(where, result.err)

    def test_errors_do_not_speak_of_grpc(self):
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            port = silent.getsockname()[1]
            result = self.cluster.weft("--server", f"127.0.0.1:{port}", "--timeout", "1", "ls")
        self.assertEqual(result.code, 6)
        self.assertIn("(the connection is refused)", result.err)
        named = self.cluster.weft("--server", "no-such-host.invalid:1", "--insecure", "--timeout",
                                  "1", "ls")
        self.assertEqual(named.code, 6)
        for dump in ("ipv4", "UNKNOWN", "addresses", "C-ares", "DNS"):
            self.assertNotIn(dump, result.err + named.err)

    def test_a_folder_that_is_not_there_is_said(self):
        result = self.cluster.weft("export", "./none", "--output", "hf")
        self.assertEqual(result.code, 3)
        self.assertIn("there is no folder ./none", result.err)

    def test_data_are_looked_at_before_anything_starts(self):
        cluster = self.cluster
        (cluster.folder / "bad.jsonl").write_text('{"text": "a"}\n{"text": null}\n')
        (cluster.folder / "table.csv").write_text("id,text\n1,a\n")
        path = cluster.job()
        good = json.loads(path.read_text())
        for train, words in [("none.txt", "there is no file"), ("no*.txt", "no file matches"),
                             ("~/none.txt", f"there is no file {cluster.folder}/none.txt"),
                             ("bad.jsonl", "bad.jsonl:2: "), ("table.csv", "is a table")]:
            path.write_text(json.dumps({**good, "data": {"train": [train]}}, indent=1))
            line = path.read_text()[:path.read_text().index(train)].count("\n") + 1
            for command in (["submit"], ["train", "--run-dir", "run"]):
                with self.subTest(train=train, command=command):
                    cluster.environment["HOME"] = str(cluster.folder)
                    result = cluster.weft(*command, path)
                    self.assertEqual(result.code, 2, result.err)
                    self.assertIn(words, result.err)
                    self.assertIn(f"{path.name}:{line}: data.train[0]: ", result.err)
        self.assertFalse((cluster.folder / "run").exists())

    def test_what_was_left_out_of_the_data_is_said(self):
        cluster = self.cluster
        text = json.dumps({"text": "the king saw the sea. " * 40 + "<|endoftext|>"})
        (cluster.folder / "some.json").write_text(f"{text}\n{{broken\n{text}\n" * 5)
        path = cluster.job(steps=2, eval_every_steps=0)
        job = json.loads(path.read_text())
        job["data"].update(train=["some.json"], bad_lines="skip")
        path.write_text(json.dumps(job))
        result = cluster.weft("train", path, "--run-dir", "run")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("5 lines of the data cannot be used and are left out", result.out)
        self.assertIn("some.json:2: ", result.out)
        self.assertIn("spelled out in the texts 10 times", result.out)

    def test_versions_and_help(self):
        self.assertIn("client", self.cluster.weft("version", "--client", "-o", "json").json())
        self.assertIn("wait timed out", self.cluster.weft("help", "exit-codes").out)

    def test_trains_in_process_without_daemons(self):
        cluster = self.cluster
        result = cluster.weft("train", cluster.job(), "--run-dir", "run")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("step 20/20", result.out)
        self.assertEqual(len((cluster.folder / "run/loss.jsonl").read_text().splitlines()), 20)
        self.assertEqual(cluster.weft("ckpt", "verify", "./run").code, 0)
        text = cluster.weft("generate", "./run", "--prompt", "the king", "--tokens", "5")
        self.assertEqual(text.code, 0, text.err)
        self.assertTrue(text.out.startswith("the king"))

    def test_a_low_rank_core_is_exported_as_a_model_of_its_own(self):
        cluster = self.cluster
        path = cluster.job("core")
        job = json.loads(path.read_text())
        job["model"]["low_rank_core"] = {"rank": 4}
        path.write_text(json.dumps(job))
        result = cluster.weft("train", path, "--run-dir", "run")
        self.assertEqual(result.code, 0, result.err)
        for folder, rank, options in (("whole", 64, ()), ("core", 4, ("--sub-network",))):
            with self.subTest(folder):
                exported = cluster.weft("export", "./run", "--output", folder, *options)
                self.assertEqual(exported.code, 0, exported.err)
                matrix = read_matrix(cluster.folder / folder / "model.safetensors",
                                     "h.1.mlp.c_fc.weight")
                self.assertEqual(rank_of(matrix), rank)
                ask = ("--prompt", "the king", "--tokens", "12", "--temperature", "0")
                here = cluster.weft("generate", "./run", *ask, *options)
                there = cluster.weft("generate", f"./{folder}", *ask)
                self.assertEqual(here.code, 0, here.err)
                self.assertEqual(here.out, there.out, there.err)

    def test_trains_on_the_processor_where_no_gpu_can_be_computed_on(self):
        cluster = self.cluster
        (cluster.folder / "gpus").write_text(
            "driver 580.65\ncount 2\n* name Test GPU\n0 uuid GPU-0\n1 uuid GPU-1\n"
            "* memory_total 85899345920\n* memory_used 0\n")
        cluster.environment.update(WEFT_FAKE_NVML=str(cluster.folder / "gpus"),
                                   LD_LIBRARY_PATH=str(BIN / "fake_nvml"),
                                   WEFT_HOME=str(cluster.folder / "a" / "home"))
        result = cluster.weft("train", cluster.job(), "--run-dir", "run")
        self.assertEqual(result.code, 0, result.err)
        job = cluster.job("on-gpu")
        asked = json.loads(job.read_text()) | {"resources": {"device": "cuda"}}
        job.write_text(json.dumps(asked))
        result = cluster.weft("train", job, "--run-dir", "on-gpu")
        self.assertEqual(result.code, 7, result.err)
        self.assertIn("GPU 0 of local: it cannot be computed on", result.err)
        self.assertIn("GPU 1 of local", result.err)

    def test_the_live_view_fits_the_terminal_and_follows_its_width(self):
        cluster = self.cluster
        terminal, stdout = pty.openpty()
        self.addCleanup(os.close, terminal)

        def resize(columns):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

        resize(40)
        job = cluster.job("view", steps=200, log_every_steps=1, eval_every_steps=50)
        with subprocess.Popen([BIN / "weft", "train", job, "--run-dir", "a_folder_with_a_long_name"],
                              stdout=stdout, env=cluster.environment, cwd=cluster.folder) as training:
            os.close(stdout)
            shown = b""
            while True:
                try:
                    read = os.read(terminal, 65536)
                except OSError:  # The last process has closed the other side.
                    break
                if b"step 20/" not in shown and b"step 20/" in shown + read:
                    resize(25)
                shown += read
        self.assertEqual(training.returncode, 0)
        lines = [re.sub("\x1b\\[[0-9]*[A-Z]", "", line).strip("\r")
                 for line in shown.decode().split("\n")]
        self.assertLess(max(map(len, lines)), 40)
        self.assertGreater(max(map(len, lines)), 25)
        last = lines[max(i for i, line in enumerate(lines) if line.startswith("view")):]
        self.assertEqual(last[0], "view  SUCCEEDED")
        self.assertIn("step 200/200", last)
        self.assertLess(max(map(len, last)), 25)
        self.assertTrue("".join(last).endswith("a_folder_with_a_long_name"), last)

    def test_training_in_process_can_be_profiled(self):
        cluster = self.cluster
        result = cluster.weft("train", cluster.job(), "--run-dir", "run", "--profile", "3")
        self.assertEqual(result.code, 0, result.err)
        self.assertIn("linear forward", result.out)
        trace = json.loads((cluster.folder / "run/profiles/step-00000002.json").read_text())
        steps = [e for e in trace["traceEvents"] if e["name"] == "step"]
        self.assertEqual(len(steps), 3)
        self.assertEqual(cluster.weft("train", cluster.job(), "--profile", "0").code, 2)

    def test_tokenizer_is_trained_from_text(self):
        cluster = self.cluster
        result = cluster.weft("tokenizer", "train", "text.txt", "--vocab-size", "280",
                              "--output", "tok")
        self.assertEqual(result.code, 0, result.err)
        tokenizer = json.loads((cluster.folder / "tok/tokenizer.json").read_text())
        self.assertEqual(len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"]), 280)
        self.assertEqual(
            cluster.weft("tokenizer", "train", "none.txt", "--output", "t2").code, 3)

        texts = ["the king", "", "a\nb <|endoftext|> é"]
        lines = "".join(json.dumps(text) + "\n" for text in texts)
        ids = cluster.weft("tokenizer", "encode", "tok", "--jsonl", stdin=lines)
        self.assertEqual(ids.code, 0, ids.err)
        lists = [json.loads(line) for line in ids.out.splitlines()]
        self.assertEqual(lists[1], [])
        self.assertNotIn(279, lists[2])
        again = cluster.weft("tokenizer", "decode", "tok", "--jsonl", stdin=ids.out)
        self.assertEqual([json.loads(line) for line in again.out.splitlines()], texts)
        plain = cluster.weft("tokenizer", "encode", "tok", stdin="the king\n")
        self.assertEqual(json.loads(plain.out), lists[0])
        parsed = cluster.weft("tokenizer", "encode", "tok", "--jsonl", "--parse-special",
                              stdin=lines)
        self.assertIn(279, json.loads(parsed.out.splitlines()[2]))
        for verb, line, words in (("encode", "text", "line 2"), ("encode", "[1]", "JSON string"),
                                  ("decode", "{}", "list of ids"), ("decode", "[-1]", "-1"),
                                  ("decode", "[280]", "280")):
            good = '"a"' if verb == "encode" else "[0]"
            bad = cluster.weft("tokenizer", verb, "tok", "--jsonl", stdin=f"{good}\n{line}\n")
            self.assertEqual(bad.code, 2, bad.err)
            self.assertIn(words, bad.err)
            self.assertEqual(len(bad.out.splitlines()), 1)

        # What could command a terminal does not reach one.
        red = "\x1b[31mred\x7f"
        ids = cluster.weft("tokenizer", "encode", "tok", stdin=red + "\n").out
        self.assertEqual(cluster.weft("tokenizer", "decode", "tok", stdin=ids).out, red + "\n")
        terminal, stdout = pty.openpty()
        self.addCleanup(os.close, terminal)
        subprocess.run([BIN / "weft", "tokenizer", "decode", "tok"], input=ids.encode(),
                       stdout=stdout, env=cluster.environment, cwd=cluster.folder, check=True)
        os.close(stdout)
        self.assertEqual(os.read(terminal, 65536).decode(), "\ufffd[31mred\ufffd\r\n")

    def test_special_tokens_are_added_around_a_text_only_when_asked_for(self):
        cluster = self.cluster
        trained = cluster.weft("tokenizer", "train", "text.txt", "--vocab-size", "280",
                               "--output", "tok")
        self.assertEqual(trained.code, 0, trained.err)
        tokenizer = json.loads((cluster.folder / "tok/tokenizer.json").read_text())
        end = tokenizer["added_tokens"][0]
        start = {**end, "id": end["id"] + 1, "content": "<start>"}
        tokenizer["added_tokens"].append(start)

        def token(which):
            return {"SpecialToken": {"id": which["content"], "type_id": 0}}

        def text(name):
            return {"Sequence": {"id": name, "type_id": 0}}

        tokenizer["post_processor"] = {
            "type": "TemplateProcessing",
            "single": [token(start), text("A"), token(end)],
            "pair": [token(start), text("A"), token(end), text("B"), token(end)],
            "special_tokens": {each["content"]: {"id": each["content"], "ids": [each["id"]],
                                                 "tokens": [each["content"]]}
                               for each in (start, end)}}
        (cluster.folder / "around").mkdir()
        (cluster.folder / "around/tokenizer.json").write_text(json.dumps(tokenizer))

        def encode(*arguments):
            lines = "".join(json.dumps(each) + "\n" for each in ("~", "", "the king", "<start>"))
            ids = cluster.weft("tokenizer", "encode", *arguments, "--jsonl", stdin=lines)
            self.assertEqual(ids.code, 0, ids.err)
            return [json.loads(line) for line in ids.out.splitlines()]

        plain = encode("around")
        self.assertEqual(plain[:2], [[tokenizer["model"]["vocab"]["~"]], []])
        self.assertEqual(encode("around", "--add-special"),
                         [[start["id"], *ids, end["id"]] for ids in plain])
        parsed = encode("around", "--add-special", "--parse-special")
        self.assertEqual(parsed[3], [start["id"], start["id"], end["id"]])
        # This one puts nothing around a text.
        self.assertEqual(encode("tok", "--add-special"), encode("tok"))

    def test_a_dead_start_says_why(self):
        cluster = self.cluster
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            cluster.port = taken.getsockname()[1]
            result = cluster.up()
        self.assertEqual(result.code, 6)
        self.assertIn("coordinator ended while starting", result.err)
        self.assertEqual(cluster.processes(), [])


class WithCluster(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster()
        cls.addClassCleanup(cls.cluster.close)
        cls.cluster.environment["WEFT_WORKER_RACK"] = "row7"
        result = cls.cluster.up()
        assert result.code == 0, result.err

    def test_up_twice_and_status(self):
        self.assertIn("already up", self.cluster.up().out)
        self.assertEqual(self.cluster.weft("status").code, 0)
        workers = self.cluster.weft("worker", "list", "-o", "json").json()["items"]
        self.assertEqual([w["state"] for w in workers], ["READY", "READY"])

    def test_a_worker_says_what_its_network_is_taken_for(self):
        workers = self.cluster.weft("worker", "list", "-o", "json").json()["items"]
        self.assertEqual(workers[0]["machine"], workers[1]["machine"])
        name = workers[0]["profile"]["worker_id"]
        described = self.cluster.weft("worker", "describe", name)
        self.assertEqual(described.code, 0, described.err)
        self.assertRegex(described.out, r"network: +[0-9.]+ [KMG]iB/s, assumed \(unknown: no other "
                                        r"machine was there or free to measure; taken to be")
        self.assertIn(workers[0]["machine"], described.out)
        self.assertIn(", rack row7\n", described.out)
        wide = self.cluster.weft("worker", "list", "-o", "wide").out
        self.assertRegex(wide, r"MACHINE +RACK .* NETWORK [^\n]*\n[^\n]* row7 [^\n]*, assumed ")
        as_json = self.cluster.weft("worker", "describe", name, "-o", "json").json()
        self.assertEqual(as_json["network"]["source"], "ASSUMED")
        missing = self.cluster.weft("worker", "describe", "no-such")
        self.assertEqual(missing.code, 3)
        self.assertIn("hint: weft worker list", missing.err)

    def test_down_will_wait_for_as_long_as_the_workers_drain(self):
        state = json.loads((self.cluster.home / "local.json").read_text())
        self.assertEqual(state["drain_seconds"], 60)
        for daemon in state["daemons"][1:]:
            command = pathlib.Path(f"/proc/{daemon['pid']}/cmdline").read_text().split("\0")
            self.assertEqual(float(command[command.index("--drain-seconds") + 1]), 60)

    def test_a_job_from_submit_to_export(self):
        cluster = self.cluster
        followed = cluster.weft("submit", cluster.job("whole"), "--follow")
        self.assertEqual(followed.code, 0, followed.err + followed.out)
        self.assertNotIn("\x1b", followed.out)
        self.assertIn("SUCCEEDED", followed.out)
        listed = cluster.weft("ls", "--state", "SUCCEEDED", "-o", "json").json()["items"]
        job = next(item for item in listed if item["id"].startswith("whole-"))
        self.assertEqual(job["progress"]["step"], 20)
        self.assertNotIn("spec", job, "lists are short")
        whole = cluster.weft("job", "get", job["id"], "-o", "json").json()
        summary = json.loads(whole["summary_json"])
        self.assertLess(summary["validation_loss_nats"], summary["unigram_entropy_nats"])
        self.assertEqual(cluster.weft("job", "wait", job["id"]).code, 0)
        self.assertIn("plan:", cluster.weft("explain", job["id"]).out)

        checkpoints = cluster.weft("ckpt", "list", job["id"], "-o", "json").json()["items"]
        self.assertEqual([(c["step"], c["verified"]) for c in checkpoints], [(20, True), (10, True)])
        self.assertEqual(cluster.weft("ckpt", "verify", job["id"]).code, 0)
        shard = next(pathlib.Path(checkpoints[1]["path"]).glob("*.safetensors"))
        content = bytearray(shard.read_bytes())
        content[-5] ^= 1
        shard.write_bytes(content)
        damaged = cluster.weft("ckpt", "verify", job["id"], "--step", "10")
        self.assertEqual(damaged.code, 1)
        self.assertIn(shard.name, damaged.err)

        exported = cluster.weft("export", job["id"], "--format", "hf", "--output", "hf")
        self.assertEqual(exported.code, 0, exported.err)
        names = {path.name for path in (cluster.folder / "hf").iterdir()}
        self.assertLessEqual({"config.json", "model.safetensors", "tokenizer.json"}, names)
        again = cluster.weft("generate", "./hf", "--prompt", "the", "--tokens", "4",
                             "--temperature", "0")
        same = cluster.weft("generate", job["id"], "--prompt", "the", "--tokens", "4",
                            "--temperature", "0")
        self.assertEqual(again.out, same.out, again.err + same.err)

    def test_a_v_cycle_from_plan_to_export(self):
        """A job with phases is one job: planned, followed, explained, saved and exported."""
        cluster = self.cluster
        path = cluster.job("cycle")
        job = json.loads(path.read_text())
        job["schedule"]["kind"] = "constant"
        job["phases"] = [{"steps": 5},
                         {"name": "small", "steps": 15, "layers": 1, "width": 32,
                          "growth": {"method": "coalesce"}},
                         {"steps": 10, "growth": {"method": "decoalesce"}}]
        path.write_text(json.dumps(job))

        table = cluster.weft("plan", path)
        self.assertEqual(table.code, 0, table.err)
        self.assertRegex(table.out, r"phase 2 of 3 \(small\) +1 +32 ")
        self.assertRegex(table.out, r"\n +all +30 ")
        plans = cluster.weft("plan", path, "-o", "json").json()
        self.assertEqual([phase["steps"] for phase in plans["phases"]], [5, 15, 10])
        self.assertAlmostEqual(plans["seconds"], sum(p["seconds"] for p in plans["phases"]))
        self.assertIn("where the time goes", table.out)
        for phase in plans["phases"]:
            run = phase["run"]
            parts = [seconds for name, seconds in run.items() if name.endswith("_seconds")]
            self.assertEqual(len(parts), 7)
            self.assertAlmostEqual(phase["seconds"], sum(parts))
            self.assertGreaterEqual(run["checkpoints"], 1)
        alone = cluster.weft("plan", path, "--phase", "2", "-o", "json").json()
        self.assertEqual(alone["candidates"][0]["plan"]["prediction"],
                         plans["phases"][1]["plan"]["prediction"])
        self.assertEqual(alone["run"], plans["phases"][1]["run"])
        self.assertIn("--phase 1", cluster.weft("plan", path, "--frontier").err)

        proposed = cluster.weft("plan", cluster.job("plain", steps=200), "--propose-phases")
        self.assertRegex(proposed.out, r"^phases:\n  - \{ steps: 10, ")
        self.assertIn("  - { steps: 240, layers: 1, width: 32,", proposed.out)
        self.assertRegex(proposed.out, r"(?s)#   phase 3 of 3: .* FLOPs\n#   all: .*#   from scratch: ")
        whole = cluster.weft("plan", cluster.job("plain", steps=200), "--propose-phases",
                             "--finish-within", "20s", "-o", "json").json()
        self.assertLessEqual(whole["plans"]["seconds"], 20)
        self.assertEqual(len(whole["phases"]), 3)

        followed = cluster.weft("submit", path, "--follow")
        self.assertEqual(followed.code, 0, followed.err + followed.out)
        self.assertIn("phase 2 of 3 (small)", followed.out)
        listed = cluster.weft("ls", "--state", "SUCCEEDED", "-o", "json").json()["items"]
        done = next(item for item in listed if item["id"].startswith("cycle-"))
        self.assertEqual(done["progress"]["step"], 30)
        explained = cluster.weft("explain", done["id"]).out
        self.assertRegex(explained, r"phase 2 of 3 \(small\) +complete +15/15 ")
        self.assertIn("phase 3 of 3", explained)

        checkpoints = cluster.weft("ckpt", "list", done["id"], "-o", "json").json()["items"]
        self.assertEqual([c["step"] for c in checkpoints], [30, 20, 15, 5])
        of_small = cluster.weft("export", done["id"], "--step", "20", "--output", "small")
        self.assertEqual(of_small.code, 0, of_small.err)
        whole = cluster.weft("export", done["id"], "--output", "whole")
        self.assertEqual(whole.code, 0, whole.err)
        for folder, layers in (("small", 1), ("whole", 2)):
            config = json.loads((cluster.folder / folder / "config.json").read_text())
            self.assertEqual(config["n_layer"], layers)
        deleted = cluster.weft("job", "delete", done["id"], "--run-dir")
        self.assertEqual(deleted.code, 0, deleted.err)

    def test_a_lottery_ticket_says_which_round_it_is_in(self):
        """Rounds are steps of one training: 8 steps, and twice the last 6 of them."""
        cluster = self.cluster
        pruning = {"method": "lottery_ticket", "density": 0.64, "distribution": "uniform",
                   "rounds": 2, "rewind_step": 2}
        followed = cluster.weft("submit", cluster.job("ticket", steps=20, pruning=pruning),
                                "--follow")
        self.assertEqual(followed.code, 0, followed.err + followed.out)
        self.assertRegex(followed.out, r"step 20/20 [^\n]*\n +round 2 of 2, step 6 of 6, density 6")
        listed = cluster.weft("ls", "--state", "SUCCEEDED", "-o", "json").json()["items"]
        done = next(item for item in listed if item["id"].startswith("ticket-"))
        for command in (("job", "describe"), ("explain",)):
            text = cluster.weft(*command, done["id"]).out
            self.assertRegex(text, r"\npart: +round 2 of 2, step 6 of 6, density 6[34]\.\d%\n")

    def test_plan_names_the_chosen_one_and_why_others_lost(self):
        cluster = self.cluster
        plan = cluster.weft("plan", cluster.job("planned"))
        self.assertEqual(plan.code, 0, plan.err)
        self.assertIn("parameters", plan.out)
        report = cluster.weft("plan", cluster.job("planned"), "-o", "json").json()
        self.assertTrue(report["candidates"][0]["chosen"])
        self.assertTrue(report["sensitivity"])
        page = cluster.weft("plan", cluster.job("planned"), "-o", "html", "--frontier")
        self.assertEqual(page.code, 0, page.err)
        self.assertIn("<h1>Plan of planned</h1>", page.out)

    def test_plan_proposes_a_model_for_a_budget(self):
        plan = self.cluster.weft("plan", "--budget", "1e20")
        self.assertEqual(plan.code, 0, plan.err)
        self.assertIn("Hoffmann", plan.out)
        hours = self.cluster.weft("plan", "--budget", "50gpu-hours", "--device-flops", "1e15",
                                  "--utilization", "0.5", "-o", "json").json()
        self.assertEqual(hours["flops"], 50 * 3600 * 1e15 * 0.5)
        self.assertEqual(len(hours["proposals"]), 2)
        # Without a rate: what the workers measured.
        measured = self.cluster.weft("plan", "--budget", "1gpuh", "-o", "json").json()
        self.assertGreater(measured["device_flops_per_second"], 1e8)
        self.assertEqual(self.cluster.weft("plan", "--budget", "a lot").code, 2)

    def test_a_repeated_submission_is_the_same_job(self):
        cluster = self.cluster
        path = cluster.job("twice", steps=5)
        first = cluster.weft("submit", path, "--request-id", "r-1", "-o", "name").out
        second = cluster.weft("submit", path, "--request-id", "r-1", "-o", "name").out
        self.assertEqual(first, second)
        self.assertEqual(cluster.weft("job", "wait", first.strip()[4:]).code, 0)

    def test_cancel_wait_and_retry(self):
        cluster = self.cluster
        job = cluster.submit(cluster.job("long", steps=100000, eval_every_steps=0))
        self.addCleanup(cluster.weft, "cancel", job)
        running = cluster.weft("job", "wait", job, "--for", "RUNNING", "--timeout", "60")
        self.assertEqual(running.code, 0, running.err)
        self.assertEqual(cluster.weft("job", "wait", job, "--timeout", "0.5").code, 12)
        self.assertEqual(cluster.weft("cancel", job).code, 0)
        self.assertEqual(cluster.weft("job", "wait", job).code, 11)
        self.assertEqual(cluster.weft("cancel", "no-such-job").code, 3)
        events = cluster.weft("job", "events", job, "-o", "json").json()["items"]
        self.assertEqual(events[0]["kind"], "submitted")
        self.assertIn("CANCELLING -> CANCELLED (gone)", [e["text"] for e in events])
        self.assertEqual(cluster.weft("job", "retry", job).code, 0)
        cluster.weft("job", "wait", job, "--for", "RUNNING", "--timeout", "60")
        self.assertEqual(cluster.weft("cancel", job).code, 0)
        self.assertEqual(cluster.weft("job", "wait", job).code, 11)

    def test_a_running_job_is_profiled_and_an_ended_one_is_not(self):
        cluster = self.cluster
        job = cluster.submit(cluster.job("profiled", steps=100000, eval_every_steps=0))
        self.addCleanup(cluster.weft, "cancel", job)
        cluster.weft("job", "wait", job, "--for", "RUNNING", "--timeout", "60")
        profile = cluster.weft("profile", job, "--steps", "4", "-o", "json")
        self.assertEqual(profile.code, 0, profile.out)
        report = profile.json()
        self.assertEqual((report["kind"], report["steps"]), ("Profile", 4))
        rows = {row["name"]: row for row in report["operations"]}
        self.assertGreater(rows["linear forward"]["flops_per_second"], 0)
        phases = sum(row["share"] for row in report["operations"]
                     if row["kind"] == "phase" and row["name"] != "step")
        self.assertGreater(phases, 0.8)
        self.assertLessEqual(phases, 1.0)
        trace = json.loads(pathlib.Path(report["trace_path"]).read_text())
        self.assertTrue({"M", "X", "C"} <= {event["ph"] for event in trace["traceEvents"]})
        table = cluster.weft("profile", job)
        self.assertIn("[operations]", table.out, table.err)
        self.assertIn("trace: ", table.out)

        self.assertEqual(cluster.weft("cancel", job).code, 0)
        self.assertEqual(cluster.weft("job", "wait", job).code, 11)
        ended = cluster.weft("profile", job)
        self.assertEqual(ended.code, 5, ended.err)
        self.assertIn("only a RUNNING one", ended.err)
        self.assertEqual(cluster.weft("profile", "no-such-job").code, 3)

    def test_logs_come_whole_and_end_with_the_outcome(self):
        cluster = self.cluster
        job = cluster.submit(cluster.job("logged", log_every_steps=1))
        followed = cluster.weft("logs", "-f", job, "--rank", "0")
        self.assertEqual(followed.code, 0, followed.err)
        self.assertEqual(followed.out, cluster.weft("logs", job, "--rank", "0").out)
        for step in (1, 20):
            self.assertIn(f"step {step}/20", followed.out)

    def test_bad_data_fails_the_job_for_good(self):
        cluster = self.cluster
        path = cluster.job("short")
        (cluster.folder / "short.txt").write_text("too short")  # which shows when it is cut
        job = json.loads(path.read_text())
        job["data"]["train"] = ["short.txt"]
        path.write_text(json.dumps(job))
        result = cluster.weft("submit", path, "-f")
        self.assertEqual(result.code, 10, result.out + result.err)
        self.assertIn("too few for one sequence", result.out)
        self.assertIn("USER_ERROR", result.out)

    def test_names_are_taken_wherever_jobs_are(self):
        cluster = self.cluster
        name = cluster.weft("submit", cluster.job("named"), "-o", "name").out.strip()
        self.assertTrue(name.startswith("job/named-"))
        self.assertEqual(cluster.weft("job", "wait", name).code, 0)
        # A state that has passed, or that another end rules out, is not waited for.
        late = cluster.weft("job", "wait", name, "--for", "running", timeout=20)
        self.assertEqual(late.code, 5, late.err)
        self.assertIn("does not become RUNNING any more", late.err)
        self.assertEqual(cluster.weft("job", "wait", name, "--for", "SUCCEEDED").code, 0)
        self.assertEqual(cluster.weft("job", "wait", name, "--for", "WALKING").code, 2)
        for command in (["job", "get"], ["job", "describe"], ["job", "events"], ["explain"], ["logs"],
                        ["cancel"], ["ckpt", "list"], ["ckpt", "verify"]):
            self.assertEqual(cluster.weft(*command, name).code, 0, command)
        self.assertIn("only a RUNNING one", cluster.weft("profile", name).err)
        checkpoint = cluster.weft("ckpt", "list", name, "-o", "name").out.split()[-1]
        self.assertIn("step 10,", cluster.weft("ckpt", "verify", checkpoint).out)
        self.assertEqual(cluster.weft("generate", name, "--prompt", "the", "--tokens", "2").code, 0)
        # Completion knows it, too.
        listed = cluster.weft("__complete", "--", "job", "wait", name[4:8])
        self.assertIn(name[4:], listed.out.split())
        self.assertEqual(cluster.weft("job", "delete", name, "-o", "name").out.strip(), name)


class Down(unittest.TestCase):
    def test_waits_for_ranks_that_take_long_to_save(self):
        cluster = Cluster(workers=1)
        self.addCleanup(cluster.close)
        save_seconds = 4
        cluster.environment["WEFT_FAILPOINTS"] = f"checkpoint.before_write=sleep:{save_seconds}000"
        up = cluster.up()
        self.assertEqual(up.code, 0, up.out + up.err)
        path = cluster.job("slow", steps=1000000, eval_every_steps=0)
        job = json.loads(path.read_text())
        job["checkpoint"]["every_steps"] = 0  # the stop alone has it save
        job["resources"] = {"ranks": 1}
        path.write_text(json.dumps(job))
        name = cluster.submit(path)

        def trains():
            now = cluster.weft("job", "get", name, "-o", "json").json()
            return now if now.get("progress", {}).get("step", 0) > 3 else None

        run = pathlib.Path(cluster.wait_for(trains)["run_dir"])
        begin = time.monotonic()
        down = cluster.weft("down")
        self.assertGreater(time.monotonic() - begin, save_seconds)
        self.assertEqual(down.code, 0, down.err)
        self.assertEqual(cluster.processes(), [])
        steps = [json.loads(line)["step"] for line in (run / "loss.jsonl").read_text().splitlines()]
        self.assertEqual([path.name for path in (run / "checkpoints").glob("step-*")],
                         [f"step-{steps[-1]:08}"])
        verified = cluster.weft("ckpt", "verify", run, "-o", "json")
        self.assertEqual(verified.code, 0, verified.err)
        self.assertEqual(verified.json()["step"], steps[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
