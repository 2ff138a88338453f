"""A local cluster started by `weft up` in a folder of its own, for tests that act as a user does."""

import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import tempfile
import time

BIN = pathlib.Path(os.environ["WEFT_BIN"])
ROOT = pathlib.Path(__file__).resolve().parents[2]


def free_port(count=1):
    """The first of `count` free ports in a row, below those that the system gives to connections."""
    while True:
        first = random.randint(20000, 32000)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
            return first
        except OSError:
            continue


def english(sentences, seed=1):
    """Text with enough structure to learn from in a few steps."""
    rng = random.Random(seed)
    subjects = ["the king", "a sailor", "the old woman", "my brother", "the river", "a small dog"]
    verbs = ["saw", "followed", "remembered", "carried", "lost", "found"]
    objects = ["the sea", "a golden ring", "the road home", "three letters", "the last light"]
    return "".join(f"{rng.choice(subjects)} {rng.choice(verbs)} {rng.choice(objects)}. "
                   for _ in range(sentences))


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    def json(self):
        return json.loads(self.out)


class Cluster:
    def __init__(self, workers=2):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-e2e-"))
        self.home = self.folder / "home"
        self.workers = workers
        # The coordinator's metrics and one a worker; then where it listens.
        self.metrics_port = free_port(workers + 2)
        self.port = self.metrics_port + workers + 1
        self.environment = dict(os.environ, WEFT_HOME=str(self.home), PATH=f"{BIN}:{os.environ['PATH']}")
        self.environment.pop("WEFT_SERVER", None)
        (self.folder / "text.txt").write_text(english(4000))

    def weft(self, *arguments, timeout=120, stdin=None):
        return Result(subprocess.run([BIN / "weft", *map(str, arguments)], capture_output=True,
                                     text=True, timeout=timeout, env=self.environment,
                                     cwd=self.folder, input=stdin))

    def up(self):
        return self.weft("up", "--workers", self.workers, "--listen", f"127.0.0.1:{self.port}",
                         "--metrics-listen", f"127.0.0.1:{self.metrics_port}",
                         "--data-root", self.folder, "--data-root", ROOT)

    def metrics_ports(self):
        return [self.metrics_port + i for i in range(self.workers + 1)]

    def job(self, name="tiny", **train):
        """Writes a job file for a model of a few thousand parameters."""
        settings = dict(steps=20, global_batch=8, precision="fp32", eval_every_steps=10,
                        eval_sequences=8)
        settings.update(train)
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({
            "name": name,
            "model": {"layers": 2, "width": 64, "heads": 2, "context": 32},
            "data": {"train": ["text.txt"], "tokenizer": {"vocab_size": 300}},
            "optimizer": {"learning_rate": 0.003},
            "schedule": {"warmup_steps": 2},
            "train": settings,
            "checkpoint": {"every_steps": 10, "keep_last": 2},
        }))
        return path

    def submit(self, path):
        result = self.weft("submit", path, "-o", "name")
        assert result.code == 0, result.err
        return result.out.strip().removeprefix("job/")

    def wait_for(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"not true within {seconds} s")

    def processes(self):
        """Processes that belong to this cluster, found by its home folder in their environment."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if f"WEFT_HOME={self.home}".encode() in (entry / "environ").read_bytes():
                    found.append((int(entry.name), (entry / "comm").read_text().strip()))
            except (OSError, ValueError):
                pass
        return found

    def down(self):
        result = self.weft("down")
        self.wait_for(lambda: not self.processes(), 20)
        return result

    def close(self):
        self.weft("down")
        left = self.processes()
        for pid, _ in left:
            os.kill(pid, 9)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes left over: {left}"
