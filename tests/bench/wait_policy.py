#!/usr/bin/env python3
"""What it costs how idle compute threads wait, on an idle machine and on a busy one.

    python tests/bench/wait_policy.py [--weft FILE] [--rounds N] [--busy-rounds N] [--limit SECONDS] \
        --json docs/benchmarks/wait_policy.json --markdown docs/benchmarks/wait_policy.md

`weft train` trains GPT-2s of three sizes on all cores: alone, and next to a busy loop a core, of the
same priority. Policies take turns. Seconds are those of the whole process, since it starts anew to set
ours. A run is stopped after --limit seconds and counts as these. Measure on a machine that does nothing
else.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from machine import cpu_name
from own_pages import ROOT, text_of_pages

CORES = len(os.sched_getaffinity(0))
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
OURS, DEFAULT = "ours", "default"
# The variable that makes each policy. With none the programs set ours; libgomp's default is what it
# has when nobody sets one.
POLICIES = {
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "1,500 spins": {"GOMP_SPINCOUNT": "1500"},
    OURS: {},
    "10,000 spins": {"GOMP_SPINCOUNT": "10000"},
    DEFAULT: {"GOMP_SPINCOUNT": "300000"},
}
# Ends with the process that started it, however that ends.
BUSY_LOOP = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(100000):
        pass
"""


class Size(NamedTuple):
    name: str
    layers: int
    width: int
    heads: int
    context: int
    batch: int
    vocabulary: int
    steps: int

    def described(self):
        return (f"{self.name}: {self.layers} layers of width {self.width}, {self.steps} steps of "
                f"{self.batch} x {self.context} tokens")


# The second is the network of docs/examples/gpt2.yaml, the third that of deploy/quickstart.sh. The
# first has so many steps that starting the process anew is less than a hundredth of its time.
SIZES = [Size("tiny", 2, 32, 2, 32, 4, 384, 2000), Size("small", 4, 128, 4, 64, 8, 384, 60),
         Size("middle", 6, 384, 6, 256, 4, 8192, 3)]


def spin_count():
    header = (ROOT / "kernels/cpu/wait_policy.h").read_text()
    return int(re.search(r'kSpinCount\[\] = "(\d+)"', header)[1])


def job(size, text):
    return {
        "name": size.name,
        "model": {"family": "gpt2", "layers": size.layers, "width": size.width,
                  "heads": size.heads, "context": size.context},
        "data": {"train": [str(text)], "tokenizer": {"vocab_size": size.vocabulary}},
        "train": {"steps": size.steps, "global_batch": size.batch, "precision": "fp32"},
        "checkpoint": {"every_steps": 0},
        "resources": {"device": "cpu", "threads_per_rank": CORES},
    }


@contextlib.contextmanager
def busy_loops(count):
    loops = [subprocess.Popen([sys.executable, "-c", BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


class Trainings:
    """Runs of `weft train` in a folder that keeps the tokenizers."""

    def __init__(self, weft, folder, limit):
        self.weft = weft.resolve()
        self.folder = folder
        self.limit = limit
        text = folder / "pages.txt"
        text.write_text(text_of_pages())
        for size in SIZES:
            (folder / f"{size.name}.json").write_text(json.dumps(job(size, text)))

    def seconds(self, size, variables):
        """Of the whole process; the limit when it was stopped."""
        run = self.folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        environment |= {"WEFT_HOME": str(self.folder / "home"), **variables}
        command = [self.weft, "train", self.folder / f"{size.name}.json", "--run-dir", run]
        begin = time.perf_counter()
        try:
            done = subprocess.run(command, cwd=self.folder, env=environment, text=True,
                                  capture_output=True, timeout=self.limit)
        except subprocess.TimeoutExpired:
            return self.limit
        seconds = time.perf_counter() - begin
        if done.returncode != 0:
            sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return min(seconds, self.limit)

    def take_turns(self, size, rounds):
        """Seconds of every round by policy."""
        turns = {policy: [] for policy in POLICIES}
        for _ in range(rounds):
            for policy, variables in POLICIES.items():
                turns[policy].append(self.seconds(size, variables))
        return turns


def rows_of(size, beside, turns, limit):
    """The rows of one size, alone or with this many busy loops. A ratio is the median of those of turns."""
    rows = []
    for policy, seconds in turns.items():
        ratios = [mine / ours for mine, ours in zip(seconds, turns[OURS])]
        median = statistics.median(seconds)
        rows.append({"size": size.name, "beside": beside, "policy": policy, "seconds": median,
                     "stopped": median >= limit, "ratio_to_ours": statistics.median(ratios),
                     "turns": seconds})
    return rows


def cell(row):
    over = "> " if row["stopped"] else ""
    return f"{over}{row['seconds']:.2f} ({over}{row['ratio_to_ours']:.2f})"


def page(report):
    loops = report["cores"]
    columns = [(size, beside) for size in report["sizes"] for beside in (0, loops)]
    row_of = {(row["size"], row["beside"], row["policy"]): row for row in report["rows"]}
    title = {OURS: f"{report['spin_count']:,} spins (ours)",
             DEFAULT: "300,000 spins (the default of libgomp)", "passive": "0 spins (passive)"}
    lines = ["# CPU: how idle compute threads wait", "",
             "Written by `tests/bench/wait_policy.py`: `weft train` of GPT-2 in fp32 with "
             f"{report['cores']} threads, alone and with {loops} busy loops of the same priority. "
             "Policies take turns. Seconds are those of the whole process, medians of "
             f"{report['rounds']} rounds alone and {report['busy_rounds']} with busy loops. In "
             "brackets: the median of the ratios to ours in the same round. A run is stopped after "
             f"{report['limit']:g} s. {report['cpu']}, {report['cores']} cores, {report['date']}.", "",
             *(f"- {description}" for description in report["sizes"].values()), "",
             "| spins before a thread sleeps | " + " | ".join(
                 f"{size}, {'busy' if beside else 'alone'}, s" for size, beside in columns) + " |",
             "|---" * (1 + len(columns)) + "|"]
    for policy in POLICIES:
        cells = [cell(row_of[*column, policy]) for column in columns]
        lines.append(f"| {title.get(policy, policy)} | " + " | ".join(cells) + " |")
    alone = [f"{100 / row_of[size, 0, DEFAULT]['ratio_to_ours'] - 100:+.1f} % ({size})"
             for size in report["sizes"]]
    lines += ["", "Time of ours against the default, alone: " + ", ".join(alone) + ".", "",
              "Raw: [wait_policy.json](wait_policy.json). Why ours: "
              "[decision 9](../decisions/0009-waiting-threads-sleep-soon.md).", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weft", type=pathlib.Path, default=ROOT / "build/release/bin/weft")
    parser.add_argument("--rounds", type=int, default=9, help="alone")
    parser.add_argument("--busy-rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=90, help="seconds of a run")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    options = parser.parse_args()
    report = {"cpu": cpu_name(), "cores": CORES, "date": datetime.date.today().isoformat(),
              "spin_count": spin_count(), "rounds": options.rounds,
              "busy_rounds": options.busy_rounds, "limit": options.limit,
              "sizes": {size.name: size.described() for size in SIZES}, "rows": []}
    with tempfile.TemporaryDirectory(prefix="weft_wait_policy_") as folder:
        trainings = Trainings(options.weft, pathlib.Path(folder), options.limit)
        for size in SIZES:
            trainings.seconds(size, {})  # makes its tokenizer
            for beside, rounds in ((0, options.rounds), (CORES, options.busy_rounds)):
                with busy_loops(beside):
                    turns = trainings.take_turns(size, rounds)
                for row in rows_of(size, beside, turns, options.limit):
                    report["rows"].append(row)
                    print(f"{row['size']}, beside {beside} loops, {row['policy']}: {cell(row)}",
                          file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(page(report))
    print(page(report))


if __name__ == "__main__":
    main()
