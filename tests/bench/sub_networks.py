#!/usr/bin/env python3
"""How long steps of independent sub-networks take, compared with plain local steps.

    python tests/bench/sub_networks.py --trainer build/release/bin/weft-trainer [--json FILE]

Trains the job of docs/examples/cluster/sub_networks.yaml with and without train.local_sub_networks,
with real weft-trainer processes on this machine, a rank on each of two cores. Both take turns.
Seconds are `median_step_seconds` of summary.json, medians of the rounds. --widths adds networks that
are wider than that of the job, with heads as wide as its own. Measure on a machine that does nothing
else.
"""

import argparse
import copy
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import yaml

from machine import cpu_name

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "docs/examples/cluster/sub_networks.yaml"
LIMIT_SECONDS = 600


def example():
    """The job, with paths that hold in any folder."""
    job = yaml.safe_load(EXAMPLE.read_text())
    job["data"]["train"] = [str((EXAMPLE.parent / path).resolve()) for path in job["data"]["train"]]
    return job


def job_of(job, width, steps, sub_networks):
    own = copy.deepcopy(job)
    model = own["model"]
    model["heads"] = model["heads"] * width // model["width"]
    model["width"] = width
    own["train"].update(steps=steps, local_sub_networks=sub_networks)
    own["checkpoint"] = {"every_steps": 0}
    return own


def spec_of(job, folder, rank):
    ranks, batch = job["resources"]["ranks"], job["train"]["global_batch"]
    threads = job["resources"]["threads_per_rank"]
    plan = {"mesh": {"data": ranks}, "micro_batch": batch // ranks, "accumulation_steps": 1,
            "threads_per_rank": threads, "precision": job["train"]["precision"],
            "bucket_bytes": 1 << 20}
    return {"job_id": job["name"], "epoch": 1, "rank": rank, "world_size": ranks,
            "host": "127.0.0.1", "run_dir": str(folder / "run"),
            "cache_dir": str(folder.parent / "cache"), "job": job, "plan": plan}


def measure(trainer, job, folder):
    """Seconds of a step."""
    folder.mkdir(parents=True)
    environment = dict(os.environ, OMP_NUM_THREADS=str(job["resources"]["threads_per_rank"]))
    ranks = []
    with open(folder / "log.txt", "w") as log:
        try:
            for rank in range(job["resources"]["ranks"]):
                path = folder / f"rank{rank}.json"
                path.write_text(json.dumps(spec_of(job, folder, rank)))
                ranks.append(subprocess.Popen([trainer, "--spec", str(path)], env=environment,
                                              stdout=subprocess.DEVNULL, stderr=log))
            codes = [rank.wait(timeout=LIMIT_SECONDS) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    if any(codes):
        raise SystemExit(f"a rank has failed: {(folder / 'log.txt').read_text()[-2000:]}")
    return json.loads((folder / "run/summary.json").read_text())["median_step_seconds"]


def row_of(width, plain, narrow):
    """`plain` and `narrow`: seconds of a step, by round."""
    return {"width": width, "plain_step_seconds": statistics.median(plain),
            "sub_networks_step_seconds": statistics.median(narrow),
            "ratio": statistics.median(b / a for a, b in zip(plain, narrow))}


def table(report):
    lines = ["| width | s a step, plain local steps | sub-networks | ratio |", "|---|---|---|---|"]
    for row in report["rows"]:
        lines.append(f"| {row['width']} | {row['plain_step_seconds']:.4f} "
                     f"| {row['sub_networks_step_seconds']:.4f} | {row['ratio']:.2f} |")
    return "\n".join(lines)


def run(arguments):
    job = example()
    report = {"cpu": cpu_name(), "ranks": job["resources"]["ranks"], "steps": arguments.steps,
              "local_steps": job["train"]["local_steps"], "rounds": arguments.rounds, "rows": []}
    with tempfile.TemporaryDirectory(prefix="weft_sub_networks_") as root:
        for width in arguments.widths or [job["model"]["width"]]:
            seconds = {False: [], True: []}
            for number in range(arguments.rounds):
                for sub_networks, measured in seconds.items():
                    folder = pathlib.Path(root) / f"{width}-{number}-{sub_networks}"
                    own = job_of(job, width, arguments.steps, sub_networks)
                    measured.append(measure(arguments.trainer, own, folder))
            report["rows"].append(row_of(width, seconds[False], seconds[True]))
    return report


def main(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--widths", type=int, nargs="+", help="multiples of 32; that of the job")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args(words)
    report = run(arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    print(table(report))


if __name__ == "__main__":
    main(sys.argv[1:])
