#!/usr/bin/env python3
"""How long the ranks of executed pipelines wait, against theory.

    python tests/bench/pipeline_bubbles/run.py --binary build/release/bin/pipeline_bench \
        --output docs/benchmarks/pipeline_bubbles.json

Runs pipeline_bench: stages that compute on as many ranks as --computing-ranks says, no more than
there are cores, and stages that sleep on two and four. Prints the tables of the page.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machine import cpu_name  # noqa: E402

COMPUTING, SLEEPING = (4, 8), (4, 8, 16)  # micro-batches
SLEEPING_RANKS = (2, 4)


def percent(share):
    return f"{100 * share:.1f} %"


def name(row):
    return row["schedule"] + (f", {row['chunks']} chunks" if row["chunks"] > 1 else "")


def sleeping_table(rows):
    print("| schedule | p | m | theory | measured | ratio |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {name(row)} | {row['ranks']} | {row['micro_batches']} | {percent(row['theory'])} "
              f"| {percent(row['measured'])} | {row['measured'] / row['theory']:.2f} |")


def computing_table(rows):
    print("| schedule | p | m | theory, stages alike | theory, stages as they are | measured "
          "| ratio | of the pipeline's time |")
    print("|---|---|---|---|---|---|---|---|")
    for row in rows:
        longer = row["by_simulated_seconds"] - 1
        print(f"| {name(row)} | {row['ranks']} | {row['micro_batches']} | {percent(row['theory'])} "
              f"| {percent(row['simulated'])} | {percent(row['measured'])} "
              f"| {row['by_simulated']:.2f} | {100 * longer:+.1f} % |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--output")
    parser.add_argument("--computing-ranks", type=int, nargs="*", default=[2])
    arguments = parser.parse_args()
    environment = dict(os.environ, OMP_WAIT_POLICY="passive")
    rows = []
    runs = [("gpt2", ranks, m) for ranks in arguments.computing_ranks for m in COMPUTING]
    runs += [("sleep", ranks, m) for ranks in SLEEPING_RANKS for m in SLEEPING]
    for stages, ranks, micro_batches in runs:
        command = [arguments.binary, "--stages", stages, "--ranks", str(ranks),
                   "--micro-batches", str(micro_batches)]
        if stages == "sleep":
            command += ["--length", "16"]  # small messages
        done = subprocess.run(command, text=True, env=environment, check=True,
                              stdout=subprocess.PIPE)
        rows += json.loads(done.stdout)
    if arguments.output:
        with open(arguments.output, "w") as file:
            file.write(json.dumps({"cpu": cpu_name(), "pipelines": rows}, indent=1) + "\n")
    computing_table([row for row in rows if row["stages"] == "gpt2"])
    print()
    sleeping_table([row for row in rows if row["stages"] == "sleep"])


if __name__ == "__main__":
    main()
