#!/usr/bin/env python3
"""Whole training steps with 2:4 sparse MLPs against dense ones, in turns.

    python tests/bench/sparse24_steps/run.py --binary build/release/bin/engine_bench \
        --output docs/benchmarks/sparse24_steps.json

Both are engine_bench on the same GPT-2 shape. A turn is some steps of each, one search for masks among
them: masks are searched every that many steps, more often than is published for GPT-2 (40). Counted is
the mean step of a turn; the ratio is the median of the quotients of turns. Measure on a machine that
does nothing else.
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

STEPS = 10  # of a turn, and between two searches for masks
VOCABULARY = 8192
SHAPES = {  # layers, width, sequences, their tokens
    "narrow": (4, 512, 8, 128),
    "middle": (3, 1024, 8, 128),
    "wide": (2, 2048, 4, 256),
}


def start(arguments, shape, precision, method):
    layers, width, sequences, length = SHAPES[shape]
    flags = dict(layers=layers, width=width, heads=width // 64, vocabulary=VOCABULARY,
                 context=length, batch=sequences, precision=precision, device=arguments.device,
                 threads=arguments.threads, warmup=1, sparsity=method)
    flags["mask-interval"] = STEPS
    return Contestant([arguments.binary, *(f"--{name}={value}" for name, value in flags.items())],
                      dict(os.environ, OMP_NUM_THREADS=str(arguments.threads)))


def measure(arguments, shape, precision):
    methods = ("none", arguments.method)
    trainings = {method: start(arguments, shape, precision, method) for method in methods}
    try:
        for training in trainings.values():
            training.wait_until_ready()
        for _ in range(arguments.turns):
            for training in trainings.values():
                training.take_turn(STEPS)
        dense, sparse = ([statistics.mean(turn["seconds"]) for turn in trainings[method].turns]
                         for method in methods)
        report = trainings["none"].finish()
        trainings[arguments.method].finish()
    finally:
        for training in trainings.values():
            training.kill()
    ratios = [a / b for a, b in zip(dense, sparse)]
    layers, width, sequences, length = SHAPES[shape]
    return {"layers": layers, "width": width, "tokens": sequences * length,
            "precision": precision, "method": arguments.method,
            "parameters": report["parameters"], "dense_seconds": statistics.median(dense),
            "sparse_seconds": statistics.median(sparse), "ratio": statistics.median(ratios),
            "ratio_least": min(ratios), "ratio_most": max(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--method", default="masked_decay")
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    rows = []
    print("| layers x width | tokens | precision | dense | 2:4 | times as fast |\n"
          "|---|---|---|---|---|---|")
    for precision in arguments.precision:
        for shape in arguments.shape:
            row = measure(arguments, shape, precision)
            rows.append(row)
            print(f"| {row['layers']} x {row['width']} | {row['tokens']} | {precision} "
                  f"| {1e3 * row['dense_seconds']:.0f} ms | {1e3 * row['sparse_seconds']:.0f} ms "
                  f"| {row['ratio']:.2f} ({row['ratio_least']:.2f} to {row['ratio_most']:.2f}) |",
                  flush=True)
    report = {"machine": machine.cpu_name(), "isa": os.environ.get("WEFT_ISA", "best"),
              "threads": arguments.threads, "vocabulary": VOCABULARY, "rows": rows}
    if arguments.output:
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
