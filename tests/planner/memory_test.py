#!/usr/bin/env python3
"""tests/bench/planner_memory on published figures of what GPUs held: the cluster model is within
bounds of them, and says of what ran that it fits and of what ran out of memory that it does not."""

import importlib.machinery
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Mean and largest error of a group. One row of the V100 says that two tensor-parallel ranks hold as
# much each as one does with half the blocks.
BOUNDS = {"BigScience 1.3B tune-up (Jean Zay), V100": (0.05, 0.24),
          "BigScience BLOOM prequel (Jean Zay), A100": (0.05, 0.10),
          "BigScience BLOOM prequel (Jean Zay), A100, sums in f32": (0.05, 0.06)}


def check_contradictions():
    """Rows whose numbers contradict each other are found, and nothing else is."""
    loader = importlib.machinery.SourceFileLoader("planner_memory",
                                                  str(HERE.parent / "bench/planner_memory"))
    tool = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(tool)

    def found(*figures):
        return tool.contradictory([{"plan": {"micro_batch": micro_batch, "tensor": tensor},
                                    "gib": gib} for micro_batch, tensor, gib in figures])

    assert found((2, 8, 44), (4, 8, 56), (8, 8, 75)) == set()
    assert found((2, 8, 55), (2, 8, 56), (1, 4, 60)) == set()
    assert found((2, 8, 38), (2, 8, 44), (4, 8, 56)) == {0, 1}
    assert found((2, 8, 65), (4, 8, 56), (4, 4, 40)) == {0, 1}


def main():
    check_contradictions()
    with tempfile.TemporaryDirectory() as folder:
        result = pathlib.Path(folder, "result.json")
        subprocess.run([HERE.parent / "bench/planner_memory", "--data", HERE / "published_memory.csv",
                        HERE / "out_of_memory.csv", "--json", result, "--binaries", sys.argv[1]],
                       check=True)
        report = json.loads(result.read_text())
    assert report["skipped"] == {}, report["skipped"]
    groups = report["groups"]
    assert set(groups) == set(BOUNDS), list(groups)
    for name, (mean, worst) in BOUNDS.items():
        entry = groups[name]
        assert entry["memory"]["rows"] == entry["ran"] >= 15, (name, entry)
        assert entry["consistent"]["mean"] < mean, (name, entry)
        if not entry["contradictory"]:
            assert entry["memory"]["worst"] < worst, (name, entry)
        assert abs(entry["consistent"]["bias"]) < 0.04, (name, entry)
        assert entry["fitted"]["rows"] + entry["trained_on"] == entry["memory"]["rows"], name
        assert entry["refused_whole"] == 0, (name, entry)
    # What ran out of memory; of one such run its neighbour with as many parameters on a rank, 203
    # billion in narrower blocks, held 67 GiB of 79.
    assert sum(entry["failed"] for entry in groups.values()) == 10, groups
    accepted = [label for entry in groups.values() for label in entry["accepted"]]
    assert len(accepted) == 1 and accepted[0].startswith("GPT 206B"), accepted


if __name__ == "__main__":
    main()
