"""Queues as a user has them: priorities, pauses, arrays, explanations and workers that get no jobs."""

import json
import unittest

from weft_cluster import Cluster


class Queues(unittest.TestCase):
    def setUp(self):
        self.cluster = Cluster(workers=1)
        self.addCleanup(self.cluster.close)
        up = self.cluster.up()
        self.assertEqual(up.code, 0, up.out + up.err)

    def weft(self, *arguments, code=0):
        result = self.cluster.weft(*arguments)
        self.assertEqual(result.code, code, f"{arguments}: {result.out}{result.err}")
        return result

    def job(self, job):
        return self.weft("job", "get", job, "-o", "json").json()

    def wait_for(self, job, state):
        self.cluster.wait_for(lambda: self.job(job)["state"] == state, 60)

    def on_all_cores(self, name, steps):
        """A job file of one rank that takes the whole worker."""
        worker = self.weft("worker", "list", "-o", "json").json()["items"][0]
        path = self.cluster.job(name, steps=steps)
        job = json.loads(path.read_text())
        job["resources"] = {"ranks": 1, "threads_per_rank": worker["profile"]["cores"]}
        path.write_text(json.dumps(job))
        return path

    def submit_long(self):
        """Until it is stopped."""
        job = self.cluster.submit(self.on_all_cores("long", 1000000))
        self.wait_for(job, "RUNNING")
        return job

    def test_a_job_is_paused_explained_updated_and_resumed(self):
        long = self.submit_long()
        self.assertIn("PAUSING", self.weft("job", "pause", long).out)
        self.wait_for(long, "PAUSED")
        self.assertEqual(self.job(long)["reason"], "PAUSED_BY_USER")
        self.assertIn("paused by a user; hint: weft job resume", self.weft("explain", long).out)
        self.assertIn("QUEUED", self.weft("job", "resume", long).out)
        again = self.weft("job", "resume", long, code=5)
        self.assertIn("only PAUSED and PAUSING jobs can be resumed", again.err)
        self.wait_for(long, "RUNNING")
        self.weft("job", "update", long, "--priority", 5)
        waits = self.cluster.submit(self.on_all_cores("waits", 5))
        self.cluster.wait_for(
            lambda: self.weft("explain", waits, "-o", "json").json().get("position") == 1, 30)
        explained = self.weft("job", "explain", waits).out
        self.assertIn("place:       1 of 1 that wait", explained)
        self.assertIn("state:       QUEUED (WAITING_FOR_CAPACITY)", explained)
        self.assertEqual(self.job(waits)["priority"], 0)
        self.assertEqual(self.weft("job", "update", waits, "--priority", 9, "-o", "json").json()["priority"], 9)
        self.weft("job", "wait", waits, "--for", "SUCCEEDED")
        self.assertIn("PREEMPTED", self.weft("job", "describe", long).out)
        unknown = self.weft("job", "update", long, "--queue", "defualt", code=2)
        self.assertIn("did you mean 'default'?", unknown.err)
        self.assertIn("nothing to update", self.weft("job", "update", long, code=2).err)
        self.weft("cancel", long)

    def test_an_array_is_one_group_with_a_limit(self):
        file = self.cluster.job("sweep", steps=1000000)
        printed = self.weft("job", "submit", file, "--array", "optimizer.learning_rate=1e-3,1e-2",
                            "--dry-run").out
        self.assertEqual(printed.count("---\n"), 2)
        said = self.weft("submit", file, "--array", "train.seed=1,2,3", "--array-limit", 1,
                         "--request-id", "once").out
        self.assertIn("3 jobs of group sweep-", said)
        group = said.split("group ")[1].split()[0]
        self.weft("submit", file, "--array", "train.seed=1,2,3", "--array-limit", 1, "--request-id", "once")
        jobs = self.weft("job", "list", "--group", group, "-o", "json").json()["items"]
        self.assertEqual(len(jobs), 3, "the second submission is the first one")
        self.assertEqual({job["group"] for job in jobs}, {group})

        def states():
            items = self.weft("job", "list", "--group", group, "-o", "json").json()["items"]
            return sorted((job["state"], job["reason"]) for job in items)

        self.cluster.wait_for(lambda: [state for state, _ in states()].count("RUNNING") == 1, 60)
        self.assertEqual([reason for state, reason in states() if state == "QUEUED"],
                         ["WAITING_FOR_JOBS"] * 2)
        self.weft("job", "cancel", "--group", group)
        self.cluster.wait_for(lambda: all(state == "CANCELLED" for state, _ in states()), 60)
        self.weft("job", "cancel", "--group", group, code=3)
        self.weft("job", "cancel", code=2)

    def test_queues_and_workers_are_shown_and_set(self):
        queues = self.weft("queue", "list", "-o", "json").json()
        self.assertEqual([queue["name"] for queue in queues["items"]], ["default"])
        self.assertIn("default", self.weft("queue", "list").out)
        worker = self.weft("worker", "list", "-o", "json").json()["items"][0]["profile"]["worker_id"]
        self.assertIn("CORDONED", self.weft("worker", "cordon", worker, "--why", "new disk").out)
        self.assertIn("READY, CORDONED", self.weft("worker", "list").out)
        self.assertIn("new disk", self.weft("worker", "describe", worker).out)
        job = self.cluster.submit(self.cluster.job("waits", steps=5))
        self.cluster.wait_for(lambda: self.job(job)["reason"] == "WAITING_FOR_WORKERS", 30)
        self.assertIn("weft worker uncordon", self.weft("explain", job).out)
        self.weft("worker", "uncordon", worker)
        self.weft("job", "wait", job, "--for", "SUCCEEDED")
        self.weft("worker", "drain", "nobody", code=3)

    def test_names_are_taken_wherever_workers_and_queues_are(self):
        worker = self.weft("worker", "list", "-o", "name").out.strip()
        self.assertEqual(worker, "worker/worker-0")
        self.assertIn("worker:      worker-0\n", self.weft("worker", "describe", worker).out)
        self.assertEqual(self.weft("worker", "describe", worker, "-o", "name").out.strip(), worker)
        for verb, state in (("drain", "DRAINING"), ("quarantine", "QUARANTINED"), ("cordon", "CORDONED")):
            self.assertRegex(self.weft("worker", verb, worker).out, f"^worker worker-0 .*{state}\n$")
        attached = self.weft("worker", "forget", worker, code=5)
        self.assertIn("worker 'worker-0' is attached", attached.err)
        missing = self.weft("worker", "describe", "worker/nobody", code=3)
        self.assertIn("there is no worker 'nobody'", missing.err)

        queue = self.weft("queue", "list", "-o", "name").out.strip()
        self.assertEqual(queue, "queue/default")
        job = self.cluster.submit(self.cluster.job("named", steps=5))  # waits for the worker
        for command in (["ls"], ["job", "list"]):
            listed = self.weft(*command, "--queue", queue, "-o", "name").out
            self.assertEqual(listed, f"job/{job}\n")
        self.weft("job", "update", f"job/{job}", "--queue", queue, "--priority", 3)
        self.assertEqual((self.job(job)["queue"], self.job(job)["priority"]), ("default", 3))
        again = self.weft("worker", "uncordon", worker, "-o", "name").out.strip()
        self.assertEqual(again, worker)
        self.weft("job", "wait", f"job/{job}", "--for", "SUCCEEDED")


if __name__ == "__main__":
    unittest.main()
