"""Runs a benchmark that prints JSON, and keeps its report."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machine import cpu_name  # noqa: E402


def measured():
    """The report of --binary, run with all other options, and the processor; also in --output."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--output")
    arguments, options = parser.parse_known_args()
    environment = dict(os.environ, OMP_WAIT_POLICY="passive")
    done = subprocess.run([arguments.binary, *options], text=True, env=environment, check=True,
                          stdout=subprocess.PIPE)
    report = {"cpu": cpu_name(), **json.loads(done.stdout)}
    if arguments.output:
        with open(arguments.output, "w") as file:
            file.write(json.dumps(report, indent=1) + "\n")
    return report
