#!/usr/bin/env python3
"""What train.deterministic mesh costs: steps with and without it, in turns.

    python tests/bench/deterministic_mesh/run.py --binary build/release/bin/engine_bench \
        --output docs/benchmarks/deterministic_mesh.json

Each row is a model, the tokens of its micro-batches and how many of them a step has; both trainings
have the same micro-batches, on one rank. A turn is some steps of each; the slow-down is the median of
the quotients of turns.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from contestant import Contestant  # noqa: E402
import machine  # noqa: E402

SMALL = dict(layers=6, width=384, heads=6, vocabulary=8192, context=512)
# Sequences of a micro-batch, micro-batches, precision.
ROWS = [(1, 8, "fp32"), (2, 8, "fp32"), (4, 8, "fp32"), (2, 8, "bf16"), (4, 1, "fp32")]


def contestant(binary, threads, shape, row, deterministic):
    sequences, micro_batches, precision = row
    flags = [f"--{name}={value}" for name, value in shape.items()]
    return Contestant(
        [binary, *flags, f"--batch={sequences * micro_batches}", f"--accumulation={micro_batches}",
         f"--precision={precision}", f"--threads={threads}", f"--deterministic={deterministic}",
         "--warmup=1"], dict(os.environ, OMP_NUM_THREADS=str(threads)))


def measure(arguments, row):
    both = {kind: contestant(arguments.binary, arguments.threads, SMALL, row, kind)
            for kind in ("run", "mesh")}
    for each in both.values():
        each.wait_until_ready()
    for _ in range(arguments.turns):
        for each in both.values():
            each.take_turn(arguments.steps)
    reports = {kind: each.finish() for kind, each in both.items()}
    seconds = {kind: [each.seconds(turn) for turn in range(arguments.turns)]
               for kind, each in both.items()}
    quotients = [mesh / run for run, mesh in zip(seconds["run"], seconds["mesh"])]
    sequences, micro_batches, precision = row
    return {"tokens_of_micro_batch": sequences * SMALL["context"], "micro_batches": micro_batches,
            "precision": precision, "step_seconds_run": statistics.median(seconds["run"]),
            "step_seconds_mesh": statistics.median(seconds["mesh"]),
            "slowdown": statistics.median(quotients) - 1,
            "slowdown_least": min(quotients) - 1, "slowdown_most": max(quotients) - 1,
            "gradient_bytes_run": reports["run"]["peak_memory"]["gradients_bytes"],
            "gradient_bytes_mesh": reports["mesh"]["peak_memory"]["gradients_bytes"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--steps", type=int, default=1, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--output")
    arguments = parser.parse_args()
    rows = []
    for row in ROWS:
        rows.append(measure(arguments, row))
        print(json.dumps(rows[-1]), flush=True)
    report = {"machine": machine.cpu_name(), "threads": arguments.threads, "model": SMALL,
              "rows": rows}
    if arguments.output:
        pathlib.Path(arguments.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
