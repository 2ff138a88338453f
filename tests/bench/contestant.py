"""Programs that take turns at training the same model, one at a time."""

import json
import pathlib
import statistics
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, **options):
    result = subprocess.run(command, capture_output=True, text=True, **options)
    if result.returncode != 0:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{result.stdout}{result.stderr}")
    return result.stdout


def engine_bench():
    """The benchmark of the release build, which the build makes only when it is asked to."""
    binary = ROOT / "build/release/bin/engine_bench"
    if not binary.exists():
        sys.exit(f"{binary} is missing; hint: cmake --preset release && "
                 "cmake --build --preset release --target engine_bench")
    return str(binary)


class Contestant:
    """A program that trains some steps whenever it is asked to."""

    def __init__(self, command, environment):
        self.command = command
        self.process = subprocess.Popen(
            [*command, "--alternate"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=environment)
        self.turns = []
        self.slower_than = None  # seconds of a step, of one that was stopped

    def line(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"failed: {' '.join(map(str, self.command))}: status {self.process.wait()}")
        return line

    def wait_until_ready(self):
        while self.line().strip() != "ready":
            pass

    def is_ready_within(self, seconds, warmup):
        """Whether it is; else it is stopped, as if its steps of warm-up had just been done."""
        late = threading.Event()

        def stop():
            late.set()
            self.process.kill()

        timer = threading.Timer(seconds, stop)
        timer.start()
        line = ""
        for line in self.process.stdout:
            if line.strip() == "ready":
                break
        timer.cancel()
        timer.join()
        if late.is_set():
            self.process.wait()
            self.slower_than = seconds / warmup
        elif line.strip() != "ready":
            sys.exit(f"failed: {' '.join(map(str, self.command))}: status {self.process.wait()}")
        return not late.is_set()

    def take_turn(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        self.turns.append(json.loads(self.line()))

    def finish(self):
        self.process.stdin.close()
        report = json.loads(self.line())
        self.process.wait()
        return report

    def kill(self):
        self.process.kill()
        self.process.wait()

    def seconds(self, turn):
        return self.slower_than or statistics.median(self.turns[turn]["seconds"])

    def gemm_flops_per_second(self):
        """0 where it had no turn."""
        return max((turn["gemm_flops_per_second"] for turn in self.turns), default=0)
