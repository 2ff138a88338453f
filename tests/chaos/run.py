#!/usr/bin/env python3
"""Runs tests of failures and compares what they measured with targets: docs/benchmarks/chaos.md.

    tests/chaos/run.sh [--build BUILD] [--json FILE] [--repeats N] [--operations N]
                       [--soak-minutes N] [--only NUMBER...]

--repeats: how often the coordinator dies at each failpoint; --operations: calls of the history check;
--soak-minutes 0: no soak. Needs chaos_test, chaos_history_test and coordinator_recovery_test in
BUILD/bin. The exit status says whether all targets are reached.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/framework"))
from figures import Figures  # noqa: E402

# Number, what, test, and what of its report is compared: property, limit, unit. Without a limit the
# test itself says whether all is well.
TESTS = [
    (2, "disk full, then room again: recovery", "Faults/ChaosOfTheDisk.*/write_ENOSPC",
     ("recovery_seconds", 10, "s")),
    (2, "write errors, then none: recovery", "Faults/ChaosOfTheDisk.*/write_EIO",
     ("recovery_seconds", 10, "s")),
    (2, "errors of fsync, then none: recovery", "Faults/ChaosOfTheDisk.*/sync_EIO",
     ("recovery_seconds", 10, "s")),
    (2, "disk full while a checkpoint is written", "ChaosOfCheckpoints.TheDiskIs*", None),
    (8, "a worker sleeps past its lease: a newer attempt trains", "ChaosOfWorkers.AWorkerSleeps*",
     ("recovery_seconds", 10, "s")),
    (8, "a daemon sleeps while its ranks go on: nothing of theirs is taken",
     "ChaosOfWorkers.ADaemonSleeps*", None),
    (9, "coordinator away for less than a lease: adopted, no restart",
     "ChaosOfOutages.OfLessThanALease*", None),
    (9, "coordinator away for more than a lease of 3 s: ranks trained for",
     "ChaosOfOutages.OfMoreThanALease*", ("trained_seconds", 4, "s")),
    (10, "kill -9 of one rank of four: training again, same loss curve bit for bit",
     "ChaosOfRanks.OneOfFour*", ("recovery_seconds", 10, "s")),
    (11, "ranks crash at every stage of a checkpoint", "ChaosOfCheckpoints.RanksCrash*", None),
    (12, "a byte of the newest checkpoint flips: training again from the one before",
     "ChaosOfCheckpoints.AByte*", ("recovery_seconds", 10, "s")),
    (13, "slow verification while one checkpoint is kept: always one to go back to",
     "ChaosOfRanks.VerifyCheckpointsSlowly*", None),
    (18, "hung collective: aborted after", "ChaosOfRanks.OneHangs*", ("abort_seconds", 30, "s")),
    (25, "log followed through three deaths of the coordinator: no gap, no line twice",
     "ChaosOfOutages.LeaveAFollowedLog*", None),
]


class Runner:
    def __init__(self, options):
        self.options = options
        self.bin = pathlib.Path(options.build) / "bin"
        self.figures = Figures(options.json)

    def run(self, program, test, environment=None):
        """Whether the tests passed, what they reported, and what they printed."""
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            done = subprocess.run(
                [self.bin / program, f"--gtest_filter={test}", f"--gtest_output=json:{report.name}"],
                env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True)
            said = json.loads(pathlib.Path(report.name).read_text() or "{}")
        properties = {}
        ran = 0
        for suite in said.get("testsuites", []):
            for case in suite["testsuite"]:
                ran += case["result"] == "COMPLETED"
                properties.update(case)
        passed = done.returncode == 0 and ran > 0
        if not passed:
            print(done.stdout[-4000:])
        return passed, properties, done.stdout

    def add(self, number, what, passed, properties, compared):
        if compared is None or compared[0] not in properties:
            self.figures.add(number, what, "as wanted" if passed else "FAILED", "as wanted", "", passed)
            return
        name, limit, unit = compared
        measured = round(float(properties[name]), 3)
        self.figures.add(number, what, measured, f"< {limit}", unit, passed and measured < limit)

    def failpoints(self):
        passed, said, _ = self.run("chaos_test", "ChaosOfTheCoordinator.TheCoordinatorIsKilledAtEvery*",
                                   {"WEFT_CHAOS_REPEATS": str(self.options.repeats)})
        what = f"coordinator killed at every failpoint, {said.get('deaths', '?')} deaths"
        self.add(1, f"{what}: jobs lost, doubled or harmed", passed, {}, None)
        self.add(1, f"{what}: longest time until it answers", passed, said, ("answer_seconds", 2, "s"))

    def history(self):
        passed, _, text = self.run("chaos_history_test", "History.*",
                                   {"WEFT_HISTORY_OPERATIONS": str(self.options.operations // 2)})
        counts = [(int(a), int(b)) for a, b in
                  re.findall(r"(\d+) operations on \d+ jobs, (\d+) deaths", text)]
        operations, deaths = (sum(column) for column in zip(*counts)) if counts else (0, 0)
        self.figures.add(28, f"{operations} calls through {deaths} deaths of the coordinator against a "
                         "model", "linearizable" if passed else "NOT LINEARIZABLE", "linearizable", "",
                         passed)

    def exploration(self):
        began = time.monotonic()
        passed, _, text = self.run("coordinator_recovery_test", "*Exploration*")
        seconds = time.monotonic() - began
        counts = {"all": 0, "not all": 0}
        for states, how in re.findall(r"explored (\d+) states, (all|not all)", text):
            counts[how] += int(states)
        self.figures.add(29, "2 workers with each disturbance of a job at any time, and with a crash while "
                         f"there are two: all {counts['all']} states; of two jobs with all disturbances "
                         f"the first {counts['not all']}", round(seconds, 1), "< 60", "s",
                         passed and seconds < 60 and counts["all"] > 0)

    def soak(self):
        minutes = self.options.soak_minutes
        if minutes == 0:
            return
        passed, said, _ = self.run("chaos_test", "Soak.*", {
            "WEFT_SOAK_SECONDS": str(60 * minutes),
            "WEFT_SOAK_KILL_SECONDS": str(self.options.soak_kill_seconds)})
        what = (f"soak of {minutes} min, something killed each {self.options.soak_kill_seconds} s "
                f"({said.get('kills', '?')} kills)")
        goodput = float(said.get("goodput_ratio", 0))
        growth = 100 * float(said.get("memory_growth_ratio", 1))
        self.figures.add(31, f"{what}: of the undisturbed rate", round(100 * goodput, 1), ">= 90", "%",
                         passed and goodput >= 0.9)
        self.figures.add(31, f"{what}: more memory of the coordinator", round(growth, 2), "< 1", "%",
                         passed and growth < 1)
        self.figures.add(31, f"{what}: more open files", int(said.get("more_files", -1)), "0", "",
                         passed and int(said.get("more_files", -1)) == 0)

    def all(self):
        only = self.options.only
        if not only or 1 in only:
            self.failpoints()
        for number, what, test, compared in TESTS:
            if not only or number in only:
                passed, said, _ = self.run("chaos_test", test)
                self.add(number, what, passed, said, compared)
        for number, part in ((28, self.history), (29, self.exploration), (31, self.soak)):
            if not only or number in only:
                part()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build/release")
    parser.add_argument("--json", default="")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--soak-minutes", type=float, default=5)
    parser.add_argument("--soak-kill-seconds", type=float, default=60)
    parser.add_argument("--only", type=int, nargs="+", default=[])
    runner = Runner(parser.parse_args())
    runner.all()
    sys.exit(0 if runner.figures.all_hold() else 1)


if __name__ == "__main__":
    main()
