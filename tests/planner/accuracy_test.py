#!/usr/bin/env python3
"""tests/bench/planner_accuracy on a few published measurements: its page is whole, and its errors
are those of a model that can be trusted. Rows that say too little are left out with a reason."""

import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def main():
    data = (HERE / "published.csv").read_text().splitlines()
    incomplete = data[1].split(",")
    incomplete[data[0].split(",").index("layers")] = ""
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder, "runs.csv")
        table.write_text("\n".join([*data, ",".join(incomplete)]) + "\n")
        result = pathlib.Path(folder, "result.json")
        subprocess.run([HERE.parent / "bench/planner_accuracy", "--data", table, "--json", result,
                        "--binaries", sys.argv[1]], check=True)
        report = json.loads(result.read_text())
    assert report["skipped"] == {"without some size or degree": 1}, report["skipped"]
    groups = report["groups"]
    assert len(groups) == 2, list(groups)
    for name, group in groups.items():
        assert group["built_in"]["mean"] < 0.12, (name, group["built_in"])
        assert group["fitted"]["rows"] + group["trained_on"] == group["built_in"]["rows"], name
    assert report["plans_per_second"] > 0


if __name__ == "__main__":
    main()
