#!/usr/bin/env python3
"""Runs tests of failures and compares what they measured with targets: docs/benchmarks/chaos.md.

    tests/chaos/run.sh [--build BUILD] [--json FILE] [--repeats N] [--waiting N] [--workloads N]
                       [--operations N] [--seeds N] [--soak-minutes N] [--fuzz-minutes N]
                       [--threads 0] [--only NUMBER...]

Without options all requirements, as they are written; that takes hours.
--repeats: how often the coordinator dies at each failpoint, while --waiting jobs wait;
--workloads: of the scheduler; --operations: calls of the history check; --seeds: simulated clusters;
--soak-minutes 0: no soak; --fuzz-minutes 0: no fuzz targets, which are built with clang. --threads 0: no ThreadSanitizer, which
has a build of its own. --only: these numbers; FILE keeps its rows of the others.
Needs the programs of TESTS and PARTS in BUILD/bin. The exit status says whether all targets are
reached.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/framework"))
from figures import Figures  # noqa: E402


class Row(NamedTuple):
    """A figure that a test reports. {name} in `what` is a property of its report."""
    number: int
    what: str
    program: str
    tests: str
    measured: str = ""  # the property that is compared; "": the test says whether all is well
    limit: float = 0  # it must be less; 0: it must be 0
    unit: str = ""
    environment: tuple = ()  # of the test: pairs


TESTS = [
    Row(2, "disk full, then room again: recovery", "chaos_test",
        "Faults/ChaosOfTheDisk.*/write_ENOSPC", "recovery_seconds", 10, "s"),
    Row(2, "write errors, then none: recovery", "chaos_test",
        "Faults/ChaosOfTheDisk.*/write_EIO", "recovery_seconds", 10, "s"),
    Row(2, "errors of fsync, then none: recovery", "chaos_test",
        "Faults/ChaosOfTheDisk.*/sync_EIO", "recovery_seconds", 10, "s"),
    Row(2, "disk full for more than a lease under a job that trains, then room: its checkpoints listed after",
        "chaos_test", "Faults/ChaosOfTheDiskUnderAJob.*/write_ENOSPC", "recovery_seconds", 10, "s"),
    Row(2, "the same with write errors", "chaos_test", "Faults/ChaosOfTheDiskUnderAJob.*/write_EIO",
        "recovery_seconds", 10, "s"),
    Row(2, "the same with errors of fsync", "chaos_test", "Faults/ChaosOfTheDiskUnderAJob.*/sync_EIO",
        "recovery_seconds", 10, "s"),
    Row(2, "disk full while a checkpoint is written", "chaos_test", "ChaosOfCheckpoints.TheDiskIs*"),
    Row(8, "a worker sleeps past its lease: a newer attempt trains", "chaos_test",
        "ChaosOfWorkers.AWorkerSleeps*", "recovery_seconds", 10, "s"),
    Row(8, "a daemon sleeps while its ranks go on: nothing of theirs is taken", "chaos_test",
        "ChaosOfWorkers.ADaemonSleeps*"),
    Row(9, "coordinator away for less than a lease: adopted, no restart", "chaos_test",
        "ChaosOfOutages.OfLessThanALease*"),
    Row(9, "coordinator away for more than a lease of 3 s: ranks trained for", "chaos_test",
        "ChaosOfOutages.OfMoreThanALease*", "trained_seconds", 4, "s"),
    Row(9, "a worker cut off for less than a lease, one way and both: no attempt spent", "chaos_test",
        "ChaosOfPartitions.ShorterThanALease*"),
    Row(9, "a worker cut off for more than a lease of 2 s: its job trains elsewhere after", "chaos_test",
        "ChaosOfPartitions.ThatOutlastALease*", "recovery_seconds", 10, "s"),
    Row(9, "the same during a save, with nothing from the worker coming through", "chaos_test",
        "ChaosOfPartitions.DuringASave*", "recovery_seconds", 10, "s"),
    Row(9, "a worker that nothing gets through to during a start: its job waits for it", "chaos_test",
        "ChaosOfPartitions.DuringAStart*"),
    Row(10, "kill -9 of one rank of four: training again, same loss curve bit for bit", "chaos_test",
        "ChaosOfRanks.OneOfFour*", "recovery_seconds", 10, "s"),
    Row(10, "a worker of two is lost for good: its job trains again on the other after", "e2e_test",
        "Recovery.AJobThatLosesAMachine*", "seconds_to_training_on_what_is_left", 10, "s"),
    Row(10, "a worker of two is lost with a spare: its job trains again by the same plan after",
        "e2e_test", "Recovery.AJobGoesOnOnASpare*", "seconds_to_training_on_a_spare", 30, "s"),
    Row(10, "a worker is lost for good, with the same bits on any mesh: the curve of one rank",
        "e2e_test", "Recovery.AJobThatIsReplanned*"),
    Row(11, "ranks crash at every stage of a checkpoint", "chaos_test",
        "ChaosOfCheckpoints.RanksCrash*"),
    Row(11, "a rank that saves a part of a checkpoint, or the first one, is killed meanwhile: it is given up",
        "trainer_process_test", "PeersProcessTest.ACheckpointInFlight*"),
    Row(12, "a byte of the newest checkpoint flips: training again from the one before", "chaos_test",
        "ChaosOfCheckpoints.AByte*", "recovery_seconds", 10, "s"),
    Row(13, "slow verification while one checkpoint is kept: always one to go back to", "chaos_test",
        "ChaosOfRanks.VerifyCheckpointsSlowly*"),
    Row(14, "a loss of the second rank alone is not finite: both go back, within their budget",
        "chaos_test", "ChaosOfNumbers.ALossThatIsNotFinite*"),
    Row(15, "a loss spikes once: its update is dropped; three times: as if the data were not there",
        "trainer_test", "RollbackTest.AShortSpike*:RollbackTest.ARunThatMetBadData*"),
    Row(15, "losses that stay bad: the job fails after its rollbacks", "trainer_process_test",
        "TrainerProcessTest.ATrainingThatNeverRecovers*"),
    Row(16, "one rank of three trains on gradients with a wrong bit: found by the next check of four "
        "steps, its machine suspected", "chaos_test", "ChaosOfNumbersOnThreeMachines.AWrongBit*"),
    Row(17, "a rank 1.3 times as slow, by the rules as shipped: named with its machine after",
        "e2e_test", "Recovery.ASlowRankIsNamed*", "seconds_to_name_a_straggler", 120, "s",
        (("WEFT_TEST_STRAGGLER_SECONDS", "30"),)),
    Row(18, "hung collective of quick steps: aborted, with the state of each rank, after", "chaos_test",
        "ChaosOfRanksThatHang.IsAbortedByTheLimit*", "abort_seconds", 30, "s"),
    Row(18, "hung collective, with --hang-seconds 5: aborted after", "chaos_test",
        "ChaosOfRanksThatHang.IsAbortedByALimitOf*", "abort_seconds", 30, "s"),
    Row(18, "hang in the first step: aborted, with the rank that the other waits for, after",
        "chaos_test", "ChaosOfRanksThatHang.InTheirFirstStep*", "abort_seconds", 30, "s"),
    Row(18, "hang of a rank that sleeps, and so does the other one in a collective: named, after",
        "chaos_test", "ChaosOfRanksThatHang.WhileAllSleep*", "abort_seconds", 30, "s"),
    Row(18, "hang in an evaluation: the same after", "chaos_test",
        "ChaosOfRanksThatHang.InAnEvaluation*", "abort_seconds", 30, "s"),
    Row(18, "hang in a save: aborted, with the rank that saves, after", "chaos_test",
        "ChaosOfRanksThatHang.InASave*", "abort_seconds", 30, "s"),
    Row(18, "a save that writes all the time, but longer than any silence may last: not aborted",
        "e2e_test", "Hangs.AreNotSeenInASlowSave*"),
    Row(21, "a worker is drained: its job trains on another one after", "e2e_test",
        "TwoWorkers.ADrainedOne*", "seconds_to_move", 60, "s"),
    Row(21, "workers shut down, whatever their ranks do just then: no step lost", "e2e_test",
        "Drain.*"),
    Row(23, "two CAs follow each other under {calls} calls: failed", "coordinator_api_test",
        "TlsTest.CertificatesRotate*", "failed_calls"),
    Row(23, "a worker's attempt, dialled again {redials} times, and {submissions} submissions go through "
        "a change of the CA: lost or doubled", "coordinator_api_test",
        "TlsTest.AWorkerAndSubmissions*", "wrong_submissions"),
    Row(24, "{cells} cells of role, call, whose job it is and in which queue, {worker_cells} of role and "
        "worker, {queue_cells} of role and the queue that a job is put into: each as the table says",
        "coordinator_api_test", "AccessTest.TheServerDoesWhat*:AccessTest.EveryCallIs*:"
        "AccessTest.WorkersAreChanged*:AccessTest.PeopleOfOneQueue*"),
    Row(25, "log followed through three deaths of the coordinator: no gap, no line twice", "chaos_test",
        "ChaosOfOutages.LeaveAFollowedLog*"),
    Row(33, "a rank and the coordinator are killed: sum of the ledger, off the wall time by",
        "e2e_test", "Recovery.TheLedgerSums*", "ledger_error_seconds", 1, "s"),
]


class Ran(NamedTuple):
    passed: bool
    cases: list  # reports of the tests
    text: str  # what they printed

    def properties(self):
        return {name: value for case in self.cases for name, value in case.items()}


class Runner:
    def __init__(self, options):
        self.options = options
        self.bin = pathlib.Path(options.build) / "bin"
        self.figures = Figures(options.json, options.only)

    def run(self, program, tests, environment=None):
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            done = subprocess.run(
                [self.bin / program, f"--gtest_filter={tests}", f"--gtest_output=json:{report.name}"],
                env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True)
            said = json.loads(pathlib.Path(report.name).read_text() or "{}")
        cases = [case for suite in said.get("testsuites", []) for case in suite["testsuite"]
                 if case["result"] == "COMPLETED"]
        passed = done.returncode == 0 and bool(cases)
        if not passed:
            # What failed may be far above the end, where daemons say the rest.
            failures = re.findall(r"^\S+:\d+: Failure\n(?:(?!\[ ).*\n)*", done.stdout, re.MULTILINE)
            print("".join(failures)[:8000] + done.stdout[-4000:])
        return Ran(passed, cases, done.stdout)

    def as_wanted(self, number, what, passed):
        self.figures.add(number, what, "as wanted" if passed else "FAILED", "as wanted", "", passed)

    def below(self, number, what, passed, measured, limit, unit):
        """`measured`: None where nothing was."""
        if measured is None:
            return self.as_wanted(number, what, False)
        measured = round(float(measured), 3)
        self.figures.add(number, what, measured, f"< {limit}", unit, passed and measured < limit)

    def row(self, row):
        ran = self.run(row.program, row.tests, dict(row.environment))
        said = ran.properties()
        what = re.sub(r"\{(\w+)\}", lambda name: str(said.get(name[1], "?")), row.what)
        if not row.measured:
            self.as_wanted(row.number, what, ran.passed)
        elif row.limit:
            self.below(row.number, what, ran.passed, said.get(row.measured), row.limit, row.unit)
        else:
            count = int(said.get(row.measured, -1))
            self.figures.add(row.number, what, count, "0", row.unit, ran.passed and count == 0)

    def failpoints(self):
        ran = self.run("chaos_test", "ChaosOfTheCoordinator.TheCoordinatorIsKilledAtEvery*",
                       {"WEFT_CHAOS_REPEATS": str(self.options.repeats),
                        "WEFT_CHAOS_WAITING": str(self.options.waiting)})
        deaths = sum(int(case.get("deaths", 0)) for case in ran.cases)
        answers = [float(case["answer_seconds"]) for case in ran.cases if "answer_seconds" in case]
        what = (f"coordinator killed at every failpoint while {self.options.waiting} jobs wait, "
                f"{deaths} deaths")
        self.as_wanted(1, f"{what}: jobs lost, doubled or harmed", ran.passed)
        self.below(1, f"{what}: longest time until it answers", ran.passed,
                   max(answers, default=None), 2, "s")

    def workloads(self):
        """19 and 20 are promises of the same passes."""
        kinds = 10
        ran = self.run("coordinator_scheduler_test", "All/Workloads.*:Scheduling.Backfills*",
                       {"WEFT_WORKLOADS": str(self.options.workloads // kinds)})

        def count(name):
            return sum(int(case.get(name, 0)) for case in ran.cases)

        self.as_wanted(19, f"{count('workloads')} random workloads, some with a stream of short jobs, racks, or "
                       "machines that drain or are lost: nothing given twice, no gang split, no job "
                       "starves or is displaced in a circle, what is freed places its job",
                       ran.passed and count("workloads") > 0)
        reserving = count("workloads_with_reservations")
        self.as_wanted(20, f"{reserving} of them first come, first served: no start that the first job "
                       "was promised is delayed", ran.passed and reserving > 0)
        kept = count("kept_promises")
        self.as_wanted(20, f"the same by the rules as shipped, with priorities: {kept} promised starts kept",
                       ran.passed and kept > 0)

    def history(self):
        ran = self.run("chaos_history_test", "History.*",
                       {"WEFT_HISTORY_OPERATIONS": str(self.options.operations // 2)})
        counts = [(int(a), int(b)) for a, b in
                  re.findall(r"(\d+) calls on \d+ jobs, (\d+) deaths", ran.text)]
        calls, deaths = (sum(column) for column in zip(*counts)) if counts else (0, 0)
        self.figures.add(28, f"{calls} calls through {deaths} deaths of the coordinator against a "
                         "model", "linearizable" if ran.passed else "NOT LINEARIZABLE", "linearizable",
                         "", ran.passed)

    def exploration(self):
        began = time.monotonic()
        ran = self.run("coordinator_recovery_test", "*Exploration*")
        seconds = time.monotonic() - began
        counts = {"all": 0, "not all": 0}
        for states, how in re.findall(r"explored (\d+) states, (all|not all)", ran.text):
            counts[how] += int(states)
        self.figures.add(29, "2 workers with each disturbance of a job at any time, and with a crash while "
                         f"there are two: all {counts['all']} states; of two jobs with all disturbances "
                         f"the first {counts['not all']}", round(seconds, 1), "< 60", "s",
                         ran.passed and seconds < 60 and counts["all"] > 0)

    def simulation(self):
        ran = self.run("simulation_test", "Simulated.*",
                       {"WEFT_SIMULATION_SEEDS": str(self.options.seeds)})
        said = ran.properties()
        self.as_wanted(30, f"{said.get('seeds', '?')} simulated clusters, {said.get('disturbances', '?')} "
                       f"disturbances in {said.get('hours', '?')} h of their time: rules kept, all jobs "
                       "end, and a seed does the same again", ran.passed)

    def soak(self):
        minutes = self.options.soak_minutes
        if minutes == 0:
            return
        ran = self.run("chaos_test", "Soak.*", {
            "WEFT_SOAK_SECONDS": str(60 * minutes),
            "WEFT_SOAK_KILL_SECONDS": str(self.options.soak_kill_seconds)})
        said = ran.properties()
        what = (f"soak of {minutes} min, something killed each {self.options.soak_kill_seconds} s "
                f"({said.get('kills', '?')} kills)")
        goodput = float(said.get("goodput_ratio", 0))
        growth = 100 * float(said.get("memory_growth_ratio", 1))
        more_files = int(said.get("more_files", -1))
        self.figures.add(31, f"{what}: of the undisturbed rate", round(100 * goodput, 1), ">= 90", "%",
                         ran.passed and goodput >= 0.9)
        self.figures.add(31, f"{what}: more memory of the coordinator after a quarter of it", round(growth, 2), "< 1", "%",
                         ran.passed and growth < 1)
        self.figures.add(31, f"{what}: more open files", more_files, "0", "",
                         ran.passed and more_files == 0)

    def fuzz(self):
        minutes = self.options.fuzz_minutes
        if minutes == 0:
            return
        done = subprocess.run([ROOT / "tests/fuzz/run.sh", "--minutes", str(minutes)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        clean = re.findall(r"fuzz: \w+: clean after (\d+) inputs", done.stdout)
        found = done.stdout.count("FOUND SOMETHING")
        if done.returncode != 0:
            print(done.stdout[-4000:])
        self.figures.add(32, f"{len(clean) + found} fuzz targets, {minutes} min each under ASan and UBSan, "
                         f"{sum(map(int, clean))} inputs: with findings", found, "0", "",
                         done.returncode == 0 and bool(clean))

    def threads(self):
        if not self.options.threads:
            return
        done = subprocess.run([ROOT / "tests/run_sanitized.sh", "--threads"], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        asked = sum(map(int, re.findall(r"sanitized: preset tsan, (\d+) test programs", done.stdout)))
        clean = len(re.findall(r"^sanitized: tsan \w+$", done.stdout, re.M))
        if done.returncode != 0:
            print(done.stdout[-4000:])
        self.figures.add(32, f"{asked} test programs of parts that have threads, without remote calls, under "
                         "ThreadSanitizer: with findings", asked - clean, "0", "",
                         done.returncode == 0 and asked > 0 and clean == asked)

    def wanted(self, numbers):
        return not self.options.only or not set(numbers).isdisjoint(self.options.only)

    def rows(self):
        for row in TESTS:
            if self.wanted([row.number]):
                self.row(row)

    def all(self):
        for numbers, part in PARTS:
            if self.wanted(numbers):
                part(self)


PARTS = [
    ([1], Runner.failpoints),
    (sorted({row.number for row in TESTS}), Runner.rows),
    ([19, 20], Runner.workloads),
    ([28], Runner.history),
    ([29], Runner.exploration),
    ([30], Runner.simulation),
    ([31], Runner.soak),
    ([32], Runner.fuzz),
    ([32], Runner.threads),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=ROOT / "build/release")
    parser.add_argument("--json", default="")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--waiting", type=int, default=1000)
    parser.add_argument("--workloads", type=int, default=100_000)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=10_000)
    parser.add_argument("--soak-minutes", type=float, default=60)
    parser.add_argument("--soak-kill-seconds", type=float, default=60)
    parser.add_argument("--fuzz-minutes", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", default=[])
    runner = Runner(parser.parse_args())
    runner.all()
    sys.exit(0 if runner.figures.all_hold() else 1)


if __name__ == "__main__":
    main()
