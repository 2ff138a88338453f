#!/usr/bin/env python3
"""Registers, spills and shared memory of each CUDA kernel, as ptxas told them in the build.

  tests/gpu/resources.py [--build build/cuda] [--write]

Compares them with docs/benchmarks/gpu/resources.json: fails when a kernel spills more than it does
there, is missing there, or when products of its warpgroups are serialized. --write makes the file
anew.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPORT = ROOT / "docs/benchmarks/gpu/resources.json"


def demangled(names):
    text = subprocess.run(["c++filt", "-p"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout
    return [re.sub(r"weft::kernels::cuda::|weft::|\(anonymous namespace\)::|^void ", "", line)
            for line in text.splitlines()]


def reports_of(build):
    """Texts of ptxas, one for each object there is: those of objects that are no more stay behind."""
    return [path.read_text() for path in sorted(build.glob("kernels/**/*.ptxas"))
            if path.with_suffix("").exists()]


def kernels_of(build):
    """[{kernel, target, registers, stack, spill_stores, spill_loads, shared}], in order."""
    rows, names = [], []
    for text in reports_of(build):
        row = None
        for line in text.splitlines():
            if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
                row = {"kernel": "", "target": match[2]}
                rows.append(row)
                names.append(match[1])
            elif match := re.search(
                    r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads",
                    line):
                if row is not None:
                    row["stack"], row["spill_stores"], row["spill_loads"] = map(int, match.groups())
            elif match := re.search(r"Used (\d+) registers", line):
                row["registers"] = int(match[1])
                shared = re.search(r"(\d+) bytes smem", line)
                row["shared"] = int(shared[1]) if shared else 0
    for row, name in zip(rows, demangled(names)):
        row["kernel"] = name
    return sorted(rows, key=lambda row: (row["kernel"], row["target"]))


def warnings_of(build):
    """What ptxas says of products or register limits of warpgroups that it could not keep."""
    lines = (line for text in reports_of(build) for line in text.splitlines())
    return sorted({line for line in lines if "serialized" in line or "setmaxnreg" in line})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/cuda")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    rows = kernels_of(options.build)
    if not rows:
        sys.exit(f"resources: no kernels in {options.build}; build weft_kernels_cuda there first")
    if options.write:
        REPORT.parent.mkdir(parents=True, exist_ok=True)
        REPORT.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
        print(f"resources: {len(rows)} kernels written to {REPORT.relative_to(ROOT)}")
        return
    known = {(row["kernel"], row["target"]): row for row in json.loads(REPORT.read_text())}
    problems = warnings_of(options.build)
    for row in rows:
        old = known.get((row["kernel"], row["target"]))
        name = f"{row['kernel']} for {row['target']}"
        if old is None:
            problems.append(f"{name} is not in the report; hint: tests/gpu/resources.py --write")
        for kind in ("spill_stores", "spill_loads"):
            allowed = old[kind] if old else 0
            if row[kind] > allowed:
                problems.append(f"{name}: {row[kind]} bytes of {kind}, {allowed} before")
    for problem in problems:
        print(f"resources: {problem}", file=sys.stderr)
    print(f"resources: {len(rows)} kernels, {len(problems)} problems")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
