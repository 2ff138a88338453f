#!/usr/bin/env python3
"""What train.deterministic mesh costs two ranks: steps with and without it, in turns.

    python tests/bench/deterministic_mesh/ranks.py --bin build/release/bin --home /tmp/mesh_ranks \
        --output docs/benchmarks/deterministic_mesh_ranks.json

Runs jobs through a coordinator and a worker that offers two cores: data-parallel ranks, the same with
ZeRO 1, 2 and 3, and a pipeline of two stages, each rank a process of one thread. Both trainings of a row
have the same micro-batches. A turn is a job of each, and its seconds of a step are the median that its summary
has; the slow-down is the median of the quotients of turns. Prints a table; --output writes the same as
JSON. Measure on a machine that does nothing else.
"""

import argparse
import json
import os
import pathlib
import statistics
import sys

BENCH = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BENCH / "own_runs"), str(BENCH)]
from jobs import job, write_data  # noqa: E402
from machine import cpu_name  # noqa: E402
from run import Weft  # noqa: E402

RANKS = 2
MICRO_BATCH, MICRO_BATCHES = 2, 8
MESHES = {
    "data parallel": {"zero_stage": 0},
    "data parallel, ZeRO 1": {"zero_stage": 1},
    "data parallel, ZeRO 2": {"zero_stage": 2},
    "data parallel, ZeRO 3": {"zero_stage": 3},
    "pipeline": {"pipeline_parallel": 2},
}
KINDS = ("run", "mesh")


def spec_of(name, kind, precision, steps, mesh):
    spec = job("gpt2", 6, 384, 256, MICRO_BATCH * MICRO_BATCHES, precision, RANKS,
               micro_batch=MICRO_BATCH, **mesh)
    spec["name"] = name
    spec["model"]["untied_classifier"] = True  # a pipeline cannot share the table
    spec["train"].update(steps=steps, deterministic=kind, eval_sequences=2)
    if kind == "mesh":
        spec["train"]["logical_micro_batch"] = MICRO_BATCH
    return spec


def step_seconds(weft, spec):
    """Median of the job's steps."""
    path = weft.home / f"{spec['name']}.json"
    path.write_text(json.dumps(spec))
    name = weft("submit", path, "-o", "name").split()[-1]
    weft("job", "wait", name)
    summary = json.loads(weft.json("job", "describe", name)["summary_json"])
    return summary["median_step_seconds"]


def measure(weft, arguments, how, precision):
    seconds = {kind: [] for kind in KINDS}
    for turn in range(arguments.turns):
        for kind in KINDS:
            name = f"{how}-{precision}-{kind}-{turn}".replace(", ", "-").replace(" ", "-").lower()
            spec = spec_of(name, kind, precision, arguments.steps, MESHES[how])
            seconds[kind].append(step_seconds(weft, spec))
    quotients = [mesh / run for run, mesh in zip(seconds["run"], seconds["mesh"])]
    return {"mesh": how, "precision": precision, "ranks": RANKS,
            "seconds_run": statistics.median(seconds["run"]),
            "seconds_mesh": statistics.median(seconds["mesh"]),
            "slowdown": statistics.median(quotients) - 1,
            "slowdown_least": min(quotients) - 1, "slowdown_most": max(quotients) - 1}


def show(rows):
    print("| two ranks | precision | s a step, `run` | s a step, `mesh` | slow-down, least to most |")
    print("|---|---|---|---|---|")
    for row in rows:
        print(f"| {row['mesh']} | {row['precision']} | {row['seconds_run']:.3f} "
              f"| {row['seconds_mesh']:.3f} | {100 * row['slowdown']:.1f} %, "
              f"{100 * row['slowdown_least']:.1f} to {100 * row['slowdown_most']:.1f} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--home", type=pathlib.Path, required=True)
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--steps", type=int, default=8, help="of a job")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", type=pathlib.Path)
    arguments = parser.parse_args()
    home = arguments.home.resolve()
    write_data(home)
    weft = Weft(arguments.bin, home, RANKS)
    weft.up()
    rows = []
    try:
        for how in MESHES:
            for precision in arguments.precision:
                rows.append(measure(weft, arguments, how, precision))
                print(json.dumps(rows[-1]), flush=True)
    finally:
        weft("down")
    show(rows)
    if arguments.output:
        report = {"cpu": cpu_name(), "processors": os.cpu_count(), "micro_batch": MICRO_BATCH,
                  "micro_batches": MICRO_BATCHES, "steps": arguments.steps,
                  "turns": arguments.turns, "rows": rows}
        arguments.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
