"""Jobs with phases that are killed (SIGKILL) where a phase begins, grows, searches, or ends go on in the
phase in which they were, to the bits of a run that was left alone."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile
import unittest

from weft_cluster import BIN, ROOT, Cluster

TEXT = ROOT / "docs/examples/weaving.txt"
SMALL = {"layers": 1, "width": 16}
COALESCE, DECOALESCE = {"method": "coalesce"}, {"method": "decoalesce", "alpha": 0.5}


def job(layers, phases):
    """Nothing is saved within a phase, so that one that is killed begins again."""
    return {
        "name": "killed",
        "model": {"layers": layers, "width": 32, "heads": 4, "context": 16},
        "data": {"train": [str(TEXT)], "validation_fraction": 0.2,
                 "tokenizer": {"vocab_size": 300}},
        "optimizer": {"learning_rate": 0.003},
        "schedule": {"kind": "constant", "warmup_steps": 0},
        "train": {"global_batch": 4, "precision": "bf16", "eval_sequences": 8},
        "checkpoint": {"every_steps": 1000},
        "phases": phases,
    }


def v_cycle():
    return job(2, [{"steps": 3}, {"steps": 4, **SMALL, "growth": COALESCE},
                   {"steps": 5, "growth": DECOALESCE}])


def tensor_files(folder):
    """The newest state of the training in a run folder, weights and all, by name."""
    steps = sorted((folder / "checkpoints").iterdir())
    return {path.name: path.read_bytes() for path in steps[-1].glob("*.safetensors")}


def parts(run):
    """Where a job has a loss curve: its phases and searches, in order."""
    return sorted(path.parent.relative_to(run) for path in run.rglob("loss.jsonl"))


class KilledRuns(unittest.TestCase):
    def same(self, run, alone):
        """All losses and the state at the end of every phase, bit for bit."""
        self.assertEqual(parts(run), parts(alone))
        for part in parts(alone):
            with self.subTest(str(part)):
                self.assertEqual((run / part / "loss.jsonl").read_text(),
                                 (alone / part / "loss.jsonl").read_text())
                states = tensor_files(alone / part)
                self.assertTrue(states)
                self.assertEqual(tensor_files(run / part), states)

    def steps_are_there_once(self, folder, first, last):
        steps = [json.loads(line)["step"]
                 for line in (folder / "loss.jsonl").read_text().splitlines()]
        self.assertEqual(steps, list(range(first, last + 1)))


class KilledTrainings(KilledRuns):
    """By `weft train`, all phases in one process."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft_killed_phases_"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.alone, self.run_dir = self.folder / "alone", self.folder / "killed"

    def start(self, run, failpoint=""):
        return subprocess.run(
            [BIN / "weft", "train", self.folder / "job.json", "--run-dir", run], timeout=120,
            capture_output=True, text=True,
            env={**os.environ, "WEFT_HOME": str(self.folder / "home"), "HOME": str(self.folder),
                 "WEFT_FAILPOINTS": failpoint})

    def train(self, run):
        done = self.start(run)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def train_alone(self, spec):
        (self.folder / "job.json").write_text(json.dumps(spec))
        self.train(self.alone)

    def kill_at(self, failpoint):
        killed = self.start(self.run_dir, failpoint)
        self.assertEqual(killed.returncode, -9, failpoint + killed.stdout + killed.stderr)

    def summary(self, part=""):
        return json.loads((self.run_dir / part / "summary.json").read_text())

    def test_in_each_grown_phase_before_its_first_checkpoint(self):
        half, quarter = {"layers": 2, "width": 16}, {"layers": 1, "width": 8}
        spec = job(4, [{"steps": 3}, {"steps": 4, **half, "growth": COALESCE},
                       {"steps": 5, **quarter, "growth": COALESCE},
                       {"steps": 4, **half, "growth": DECOALESCE},
                       {"steps": 5, "growth": DECOALESCE}])
        self.train_alone(spec)
        steps = [phase["steps"] for phase in spec["phases"]]
        folders = [self.run_dir / f"phase-{number}" for number in range(1, 5)] + [self.run_dir]
        # Right after the growth, or some steps later. Each run begins with the phase in which the one
        # before was killed.
        for phase, done in ((1, 0), (2, 2), (3, 0), (4, 3)):
            self.kill_at(f"trainer.before_step=crash@{steps[phase - 1] + done + 1}")
            self.assertTrue((folders[phase - 1] / "summary.json").exists(), phase)
            self.assertTrue((folders[phase] / "growth.json").exists(), "it has grown")
            self.assertFalse((folders[phase] / "summary.json").exists(), phase)
            self.assertEqual(list((folders[phase] / "checkpoints").glob("step*")), [], phase)
        self.train(self.run_dir)
        self.same(self.run_dir, self.alone)
        for folder, count in zip(folders, steps):
            self.steps_are_there_once(folder, 1, count)
            self.assertEqual(json.loads((folder / "summary.json").read_text())["resumed_from_step"], 0)
        self.assertEqual([phase["steps"] for phase in self.summary()["phases"]], steps)
        for part in ("phase-2", "phase-3", "phase-4", ""):
            self.assertEqual((self.run_dir / part / "growth.json").read_text(),
                             (self.alone / part / "growth.json").read_text(), part)

    def test_where_a_phase_ends(self):
        spec = v_cycle()
        self.train_alone(spec)
        for part in ("phase-1", "phase-2", ""):
            self.kill_at("checkpoint.after_verify=crash@1")  # the last one of the phase
            self.assertFalse((self.run_dir / part / "summary.json").exists(), part)
            self.kill_at("trainer.after_phase=crash@1")
            self.assertTrue((self.run_dir / part / "summary.json").exists(), part)
            if part == "phase-1":
                self.assertFalse((self.run_dir / "phase-2").exists())
        self.train(self.run_dir)
        self.same(self.run_dir, self.alone)
        for part, phase in zip(("phase-1", "phase-2", ""), spec["phases"]):
            self.steps_are_there_once(self.run_dir / part, 1, phase["steps"])
        self.assertEqual([phase["steps"] for phase in self.summary()["phases"]], [3, 4, 5])

    def test_while_a_growth_operator_is_learned(self):
        learned = {"method": "ligo", "fit_steps": 4}
        self.train_alone(job(2, [{"steps": 3, **SMALL}, {"steps": 4, "growth": learned}]))
        for failpoint in ("trainer.before_fit_step=crash@3", "trainer.before_step=crash@2"):
            self.kill_at(failpoint)
            self.assertFalse((self.run_dir / "summary.json").exists())
        self.train(self.run_dir)
        self.same(self.run_dir, self.alone)
        self.steps_are_there_once(self.run_dir, 1, 4)
        self.assertEqual((self.run_dir / "growth.json").read_text(),
                         (self.alone / "growth.json").read_text())

    def test_between_a_search_and_the_chosen_part(self):
        search = {"steps": 4, "layers": [1, 2, 3]}
        self.train_alone(job(4, [{"steps": 8, "layers": 3, "search": search},
                                 {"steps": 4, "growth": {"method": "stack"}}]))
        first = self.run_dir / "phase-1"
        self.kill_at("checkpoint.after_verify=crash@1")  # the last one of the search
        self.assertFalse((first / "search/search.json").exists())
        # Before the first step of the chosen part, and before its third one.
        for failpoint in ("trainer.before_step=crash@1", "trainer.before_step=crash@3"):
            self.kill_at(failpoint)
            self.assertTrue((first / "search/search.json").exists())
            self.assertEqual(list((first / "checkpoints").glob("step*")), [])
        self.train(self.run_dir)
        self.same(self.run_dir, self.alone)
        self.assertEqual(len(parts(self.alone)), 3)
        self.steps_are_there_once(first / "search", 1, 4)
        self.steps_are_there_once(first, 5, 8)
        self.steps_are_there_once(self.run_dir, 1, 4)

        def choice(run):
            found = json.loads((run / "phase-1/search/search.json").read_text())
            del found["seconds"]
            return found
        self.assertEqual(choice(self.run_dir), choice(self.alone))


class KilledSubNetworks(KilledRuns):
    """By coordinator and workers: the example of independent sub-networks."""

    def test_killed_between_rounds(self):
        cluster = Cluster()
        self.addCleanup(cluster.close)
        trainer = cluster.folder / "trainer.sh"  # dies in the first attempt of one of the two jobs
        trainer.write_text(
            '#!/bin/sh\ncase "$WEFT_ATTEMPT" in\nkilled-*:1)\n'
            "export WEFT_FAILPOINTS=trainer.before_step=sleep:50,checkpoint.after_verify=crash@1 ;;\n"
            f'esac\nexec {BIN}/weft-trainer "$@"\n')
        trainer.chmod(stat.S_IRWXU)
        cluster.environment["WEFT_WORKER_TRAINER"] = str(trainer)
        shutil.copytree(ROOT / "docs/examples", cluster.folder, dirs_exist_ok=True)
        up = cluster.up()
        self.assertEqual(up.code, 0, up.out + up.err)
        text = (cluster.folder / "cluster/sub_networks.yaml").read_text()
        for field, value in (("name", "{name}"), ("steps", 12), ("warmup_steps", 2),
                             ("local_steps", 3)):
            text, changed = re.subn(rf"\b{field}: [\w-]+", f"{field}: {value}", text)
            self.assertEqual(changed, 1, field)
        runs = {}
        for name in ("alone", "killed"):
            path = cluster.folder / f"cluster/{name}.yaml"
            path.write_text(text.replace("{name}", name) + "checkpoint: { every_steps: 3 }\n")
            submitted = cluster.submit(path)
            waited = cluster.weft("job", "wait", submitted)
            self.assertEqual(waited.code, 0, waited.out + waited.err)
            described = cluster.weft("job", "describe", submitted, "-o", "json").json()
            self.assertEqual(len(described["attempts"]), 1 if name == "alone" else 2)
            runs[name] = pathlib.Path(described["run_dir"])
        resumed = json.loads((runs["killed"] / "summary.json").read_text())["resumed_from_step"]
        self.assertIn(resumed, (3, 6, 9), "between rounds")
        self.same(runs["killed"], runs["alone"])
        self.assertEqual(len(tensor_files(runs["alone"])), 2, "each worker has its own")
        self.steps_are_there_once(runs["killed"], 1, 12)


if __name__ == "__main__":
    unittest.main()
