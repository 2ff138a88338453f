"""Runs jobs with `weft train`, a few at a time, and keeps what came out of each."""

import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import threading

CURVE_POINTS = 200
RUNS = "runs"  # in the work folder, a folder a run
EXPORTED = "base"  # in the folder of a run, the model of the run before


@dataclasses.dataclass(frozen=True)
class Run:
    """A job by name; its paths are seen from a folder in RUNS. `may_diverge`: that the training
    breaks off is a result, not a failure. `timed`: its seconds count, so nothing runs meanwhile.
    `base`: a run whose exported model this one starts from, as EXPORTED in its folder. `inputs`: pairs of
    a name and a run, whose exported models are folders of these names in its folder; later runs may
    use the exports of earlier ones."""
    name: str
    job: dict
    may_diverge: bool = False
    timed: bool = False
    base: "Run" = None
    inputs: tuple = ()

    def text(self):
        lines = [f"name: {self.name}"]
        return "\n".join(lines + [f"{key}: {json.dumps(value)}"
                                  for key, value in self.job.items()]) + "\n"


class MeasurementError(Exception):
    pass


def content_hash(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def data_hashes(job, folder):
    return [content_hash((folder / path).resolve()) for part in ("train", "validation")
            for path in job["data"].get(part, [])]


def thinned(points):
    """Means of equal stretches of the steps, so that a curve has at most CURVE_POINTS points."""
    stretch = -(-len(points) // CURVE_POINTS) or 1
    curve = []
    for i in range(0, len(points), stretch):
        part = points[i:i + stretch]
        finite = [loss for _, loss in part if loss is not None]
        if finite:
            curve.append([part[-1][0], round(sum(finite) / len(finite), 5)])
    return curve


def step_seconds(output, summary):
    """Medians of the steps of each phase, or of the whole job, whose run folder is `output`."""
    phases = len(summary["phases"]) or 1
    folders = [*(output / f"phase-{i}" for i in range(1, phases)), output]
    return [json.loads((folder / "summary.json").read_text())["median_step_seconds"]
            for folder in folders]


class Record:
    """Losses and FLOPs of finished trainings, in a file that is small enough to be kept: with another
    work folder, the rest is trained."""

    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()
        self.known = json.loads(path.read_text()) if path.exists() else {}

    @staticmethod
    def hash_of(identity):
        return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

    def find(self, name, identity):
        """The result of a run, without curves and seconds; None where it is not there."""
        found = self.known.get(name)
        return found if found and found["identity"] == self.hash_of(identity) else None

    def add(self, name, identity, result):
        summary = result["summary"]
        if summary is not None:
            phases = summary.get("phases") or [summary]
            summary = {"validation_loss_nats": summary["validation_loss_nats"],
                       "phases": [{"training_flops": each["training_flops"]} for each in phases]}
        with self.lock:
            self.known[name] = {"identity": self.hash_of(identity), "diverged": result["diverged"],
                                "summary": summary}
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(dict(sorted(self.known.items())), indent=1) + "\n")
            new.rename(self.path)


class Runner:
    """`work` keeps the result of every run; a run whose job and data are unchanged is not repeated,
    nor is one that a `record` has, unless its seconds count."""

    def __init__(self, weft, work, parallel, record=None):
        self.weft = weft
        self.work = work
        self.parallel = parallel
        self.record = record

    def run_all(self, runs):
        """Results by name of the run; timed ones last."""
        runs = list(runs)
        with concurrent.futures.ThreadPoolExecutor(self.parallel) as pool:
            futures = {run.name: pool.submit(self.result, run) for run in runs if not run.timed}
            try:
                results = {name: future.result() for name, future in futures.items()}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return results | {run.name: self.result(run) for run in runs if run.timed}

    def result(self, run):
        folder = self.work / RUNS / run.name
        path = folder / "result.json"
        identity = {"job": run.text(), "data": data_hashes(run.job, folder)}
        if run.base is not None:
            identity["base"] = run.base.text()
        if run.inputs:
            identity["inputs"] = [[name, source.text()] for name, source in run.inputs]
        recorded = self.record is not None and not run.timed
        if recorded and (found := self.record.find(run.name, identity)):
            return found
        if path.exists():
            result = json.loads(path.read_text())
            if result["identity"] == identity:
                if recorded:
                    self.record.add(run.name, identity, result)
                return result
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        result = {"identity": identity}
        if run.base is not None:
            before = self.train(run.base, folder, export=folder / EXPORTED)
            result["base_seconds"] = before["summary"]["seconds"]
        if run.inputs:
            result["input_losses"] = {
                name: final_loss(self.train(source, folder, export=folder / name))
                for name, source in run.inputs}
        result |= self.train(run, folder)
        for name in (EXPORTED, *dict(run.inputs)):
            shutil.rmtree(folder / name, ignore_errors=True)
        path.with_suffix(".new").write_text(json.dumps(result))
        path.with_suffix(".new").rename(path)
        if recorded:
            self.record.add(run.name, identity, result)
        return result

    def train(self, run, folder, export=None):
        """What came out of a run; `export`: where its model goes in Hugging Face's format."""
        job_file = folder / "job.yaml"
        job_file.write_text(run.text())
        output = folder / "output"
        environment = dict(os.environ, WEFT_HOME=str(self.work / "home"), WEFT_LOG="info")
        log = folder / "log.txt"
        with open(log, "w") as file:
            status = subprocess.run([self.weft, "train", job_file, "--run-dir", output],
                                    stdout=file, stderr=file, env=environment).returncode
        text = log.read_text()
        diverged = "the training diverged" in text
        if status != 0 and not (run.may_diverge and diverged):
            raise MeasurementError(f"`weft train {job_file}` failed; its log is {log}\n"
                                   + "\n".join(text.splitlines()[-5:]))
        lines = [json.loads(line) for line in (output / "loss.jsonl").read_text().splitlines()]
        summary = None if status != 0 else json.loads((output / "summary.json").read_text())
        steps_take = step_seconds(output, summary) if run.timed and summary is not None else []
        if export is not None:
            with open(log, "a") as file:
                status = subprocess.run([self.weft, "export", output, "--output", export],
                                        stdout=file, stderr=file, env=environment).returncode
            if status != 0:
                raise MeasurementError(f"`weft export` of {run.name} failed; its log is {log}")
        shutil.rmtree(output)
        print(f"{run.name}: " + ("diverged" if summary is None else
                                 f"validation {summary['validation_loss_nats']:.4f}, "
                                 f"{summary['seconds']:.0f} s"), flush=True)
        evaluations = re.findall(r"step (\d+) validation loss (\S+)(?: accuracy (\S+) %)?(.*)", text)
        named_by_step = re.findall(r" step (\d+)/\d+ loss .* tokens/s(.*)", text)
        named_by_step += [(step, named) for step, _, _, named in evaluations]
        metrics = {}
        for step, named in named_by_step:
            for name, value in re.findall(r"([a-z]\w+) ([\d.e+-]+)", named):
                metrics.setdefault(name, []).append([int(step), float(value)])
        return {
            "diverged": summary is None,
            "training": thinned([(line["step"], line["loss"]) for line in lines]),
            "validation": [[int(step), float(loss)] for step, loss, _, _ in evaluations],
            "accuracy": [[int(step), float(percent)] for step, _, percent, _ in evaluations
                         if percent],
            "metrics": metrics,
            "summary": summary,
            "step_seconds": steps_take,
        }


def seconds_of(result):
    """Of the training, and of that of the model it started from."""
    return result["summary"]["seconds"] + result.get("base_seconds", 0)


def final_loss(result):
    """Validation loss in nats after the last step; infinite when the training broke off."""
    return float("inf") if result["diverged"] else result["summary"]["validation_loss_nats"]
