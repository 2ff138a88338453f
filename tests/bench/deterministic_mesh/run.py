#!/usr/bin/env python3
"""What train.deterministic mesh costs: steps with and without it, in turns.

    python tests/bench/deterministic_mesh/run.py --binary build/release/bin/engine_bench \
        --output docs/benchmarks/deterministic_mesh.json

Both trainings have the same micro-batches, on one rank of one thread. Counted is the processor time of the
process, which other work of the machine changes less than the time of a clock. A turn is some steps of
each; the slow-down is the median of the quotients of turns.
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

MODEL = dict(layers=6, width=384, heads=6, vocabulary=8192)
# Sequences of a micro-batch, their tokens, micro-batches of a step, precision.
ROWS = [(1, 64, 8, "fp32"), (1, 256, 8, "fp32"), (2, 256, 8, "fp32"), (2, 256, 8, "bf16")]


def processor_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Trained(Contestant):
    def __init__(self, binary, row, deterministic):
        sequences, length, micro_batches, precision = row
        flags = [f"--{name}={value}" for name, value in MODEL.items()]
        super().__init__(
            [binary, *flags, f"--context={length}", f"--batch={sequences * micro_batches}",
             f"--accumulation={micro_batches}", f"--precision={precision}", "--threads=1",
             f"--deterministic={deterministic}", "--warmup=1"],
            dict(os.environ, OMP_NUM_THREADS="1"))

    def take_turn(self, steps):
        """Processor seconds of a step."""
        before = processor_seconds(self.process)
        super().take_turn(steps)
        return (processor_seconds(self.process) - before) / steps


def measure(arguments, row):
    trainings = {kind: Trained(arguments.binary, row, kind) for kind in ("run", "mesh")}
    for training in trainings.values():
        training.wait_until_ready()
    seconds = {kind: [] for kind in trainings}
    for _ in range(arguments.turns):
        for kind, training in trainings.items():
            seconds[kind].append(training.take_turn(arguments.steps))
    reports = {kind: training.finish() for kind, training in trainings.items()}
    quotients = [mesh / run for run, mesh in zip(seconds["run"], seconds["mesh"])]
    sequences, length, micro_batches, precision = row
    return {"tokens_of_micro_batch": sequences * length, "micro_batches": micro_batches,
            "precision": precision, "processor_seconds_run": statistics.median(seconds["run"]),
            "processor_seconds_mesh": statistics.median(seconds["mesh"]),
            "slowdown": statistics.median(quotients) - 1,
            "slowdown_least": min(quotients) - 1, "slowdown_most": max(quotients) - 1,
            "gradient_bytes_run": reports["run"]["peak_memory"]["gradients_bytes"],
            "gradient_bytes_mesh": reports["mesh"]["peak_memory"]["gradients_bytes"],
            "parameters": reports["run"]["parameters"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--steps", type=int, default=1, help="of a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--output")
    arguments = parser.parse_args()
    rows = []
    for row in ROWS:
        rows.append(measure(arguments, row))
        print(json.dumps(rows[-1]), flush=True)
    report = {"machine": machine.cpu_name(), "model": MODEL, "rows": rows}
    if arguments.output:
        pathlib.Path(arguments.output).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
