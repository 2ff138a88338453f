#!/usr/bin/env python3
"""Two ranks on machines with a slow link between them: loss against time, with and without local steps.

    sudo python3 tests/bench/slow_links/run.py --trainer build/release/bin/weft-trainer \
        --text TEXT --output docs/benchmarks/local_steps.json --plot docs/benchmarks/local_steps.svg

Trains a GPT-2 on TEXT for --seconds over each link in each way, with real weft-trainer processes in
network namespaces, and prints the table of the page. All runs have the same first weights, the same
batches and the same learning rate, and are compared by their loss on the same validation sequences.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from links import SlowLink  # noqa: E402
from machine import cpu_name  # noqa: E402

RANKS = 2
BATCH, CONTEXT = 8, 128
EVAL_EVERY, EVAL_SEQUENCES = 8, 16
STEP = re.compile(r"step (\d+)/\d+ loss ")
VALIDATION = re.compile(r"step (\d+) validation loss ([0-9.]+)")


def job_of(text, local_steps):
    return {
        "name": "slow-links",
        "model": {"family": "gpt2", "layers": 4, "width": 128, "heads": 4, "context": CONTEXT},
        "data": {"train": [str(text)], "tokenizer": {"vocab_size": 1024}},
        "optimizer": {"learning_rate": 2e-3},
        "schedule": {"kind": "constant", "warmup_steps": 10},
        "train": {"steps": 1000000, "global_batch": BATCH, "precision": "fp32",
                  "eval_every_steps": EVAL_EVERY, "eval_sequences": EVAL_SEQUENCES, "log_every_steps": 1,
                  "local_steps": local_steps},
        "checkpoint": {"every_steps": 0},
        "resources": {"ranks": RANKS, "threads_per_rank": 1},
    }


def spec_of(folder, text, local_steps, rank, host):
    plan = {"mesh": {"data": RANKS}, "micro_batch": BATCH // RANKS, "accumulation_steps": 1,
            "threads_per_rank": 1, "precision": "fp32", "bucket_bytes": 1 << 20}
    return {"job_id": "slow-links", "epoch": 1, "rank": rank, "world_size": RANKS, "host": host,
            "run_dir": str(folder / "run"), "cache_dir": str(folder.parent / "cache"),
            "job": job_of(text, local_steps), "plan": plan}


class Run:
    """What rank 0 tells, with the seconds since it finished its first step."""

    def __init__(self):
        self.steps = []        # seconds of each step's end
        self.numbers = []      # and its number
        self.validation = []   # [step, seconds, loss]
        self.start = None
        self.lines = []

    def read(self, pipe):
        for line in pipe:
            now = time.monotonic()
            self.lines.append(line)
            if step := STEP.search(line):
                self.start = self.start or now
                self.steps.append(now - self.start)
                self.numbers.append(int(step[1]))
            elif found := VALIDATION.search(line):
                self.validation.append(
                    [int(found[1]), now - self.start, float(found[2])])

    def reached(self):
        """Steps a second, from the first that was reported to the last."""
        return (self.numbers[-1] - self.numbers[0]) / max(self.steps[-1], 1e-9)


def train(arguments, link, local_steps, folder):
    folder.mkdir()
    run, ranks = Run(), []
    environment = dict(os.environ, OMP_NUM_THREADS="1", WEFT_LOG="info")
    try:
        for rank in range(RANKS):
            spec = folder / f"rank{rank}.json"
            spec.write_text(json.dumps(spec_of(folder, arguments.text.resolve(), local_steps, rank,
                                               link.addresses[rank])))
            command = link.command(link.names[rank], arguments.trainer, "--spec", str(spec))
            ranks.append(subprocess.Popen(
                command, env=environment, text=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL))
        reader = threading.Thread(target=run.read, args=(ranks[0].stderr,))
        reader.start()
        while all(rank.poll() is None for rank in ranks):
            if run.start and time.monotonic() - run.start > arguments.seconds:
                break
            time.sleep(0.1)
        else:
            raise RuntimeError("a rank has ended: " + "".join(run.lines[-20:]))
    finally:
        for rank in ranks:
            rank.send_signal(signal.SIGKILL)
            rank.wait()
    reader.join()
    return {"local_steps": local_steps, "link_bits_per_second": link.bits_per_second,
            "steps": len(run.steps),
            "step_seconds": run.steps[-1] / max(len(run.steps) - 1, 1),
            "validation": run.validation}


def name_of(run):
    return "sums every step" if run["local_steps"] == 1 else f"{run['local_steps']} local steps"


def rate(bits):
    return f"{bits // 10**9} Gbit/s" if bits >= 10**9 else f"{bits // 10**6} Mbit/s"


def best(run):
    return min((loss for _, _, loss in run["validation"]), default=float("nan"))


def table(report):
    print("| link | ranks | steps | s a step | best validation loss | reached the first row's loss in |")
    print("|---|---|---|---|---|---|")
    for bits in report["measured_bits_per_second"]:
        runs = [run for run in report["runs"] if run["link_bits_per_second"] == int(bits)]
        reference = best(runs[0])
        for run in runs:
            reached = [seconds for _, seconds, loss in run["validation"] if loss <= reference]
            print(f"| {rate(int(bits))} | {name_of(run)} | {run['steps']} "
                  f"| {run['step_seconds']:.3f} "
                  f"| {best(run):.3f} "
                  f"| {f'{reached[0]:.0f} s' if reached else 'not reached'} |")


def plot(report, path):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "curves"))
    from plots import draw
    from report import Panel, Series
    draw([Panel(title=rate(int(bits)), x="seconds", y="validation loss, nats per token",
                series=[Series(name_of(run), [point[1:] for point in run["validation"]], True)
                        for run in report["runs"] if run["link_bits_per_second"] == int(bits)])
          for bits in report["measured_bits_per_second"]], path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--links", type=int, nargs="+", default=[10**8, 10**9], help="bits/s")
    parser.add_argument("--local-steps", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--plot", type=pathlib.Path)
    arguments = parser.parse_args()
    report = {"cpu": cpu_name(), "ranks": RANKS, "seconds": arguments.seconds,
              "measured_bits_per_second": {}, "runs": []}
    with tempfile.TemporaryDirectory(prefix="weft_slow_links_") as root:
        for bits in arguments.links:
            with SlowLink(bits) as link:
                report["measured_bits_per_second"][str(bits)] = round(link.measure(bits // 8))
                for local_steps in arguments.local_steps:
                    folder = pathlib.Path(root) / f"{bits}-{local_steps}"
                    report["runs"].append(train(arguments, link, local_steps, folder))
                    print(rate(bits), name_of(report["runs"][-1]), report["runs"][-1]["steps"],
                          "steps", file=sys.stderr, flush=True)
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")
    if arguments.plot:
        plot(report, arguments.plot)
    table(report)


if __name__ == "__main__":
    main()
