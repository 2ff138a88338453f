"""A coordinator for several machines, as docs/security.md sets it up: TLS, people, roles, audit log."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import tempfile
import time
import unittest
import warnings

from weft_cluster import BIN, english

# As in `weft help exit-codes`.
OK, FAILED, USAGE, DENIED, UNAVAILABLE = 0, 1, 2, 4, 6


class Secured:
    """Its daemons, in a folder of their own."""

    def __init__(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-secured-"))
        self.daemons = []
        self.environment = {name: value for name, value in os.environ.items()
                            if not name.startswith("WEFT_")}
        self.environment["WEFT_HOME"] = str(self.folder / "home")
        (self.folder / "data").mkdir()
        (self.folder / "data/text.txt").write_text(english(2000))
        (self.folder / "elsewhere.txt").write_text(english(2000))
        self.certs = self.folder / "ca"
        self.must("certs", "init", self.certs)
        self.must("certs", "issue", self.certs, "server", "localhost", "127.0.0.1")
        self.must("certs", "issue", self.certs, "worker", "node-1")
        self.people = self.folder / "people.yaml"
        self.people.write_text("people:\n")
        self.people.chmod(0o600)
        for name, role in (("ada", "admin"), ("una", "user"), ("viv", "viewer")):
            entry = self.must("auth", "token", name, "--role", role, "--file", self.token(name))
            with self.people.open("a") as file:
                file.write(entry.stdout)
        self.address = ""

    def token(self, name):
        return self.folder / f"{name}.token"

    def run(self, *arguments, **changes):
        return subprocess.run([BIN / "weft", *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, cwd=self.folder, env={**self.environment, **changes})

    def must(self, *arguments):
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return done

    def weft(self, name, *arguments):
        """As a person, over TLS."""
        return self.run("--server", self.address, "--tls-ca", self.certs / "ca.pem",
                        "--token-file", self.token(name), *arguments)

    def start(self, name, *arguments):
        with open(self.folder / f"{name}.log", "a") as log:
            process = subprocess.Popen([BIN / arguments[0], *map(str, arguments[1:])], stdout=log,
                                       stderr=log, env=self.environment, cwd=self.folder)
        self.daemons.append(process)
        return process

    def coordinator_arguments(self):
        return ["weft-coordinator", "--listen", "0.0.0.0:0", "--metrics-listen", "127.0.0.1:0",
                "--data-dir", self.folder / "coordinator", "--run-root", self.folder / "runs"]

    def start_coordinator(self):
        process = self.start(
            "coordinator", *self.coordinator_arguments(), "--data-root", self.folder / "data",
            "--tls-cert", self.certs / "server.pem", "--tls-ca", self.certs / "ca.pem",
            "--tls-crl", self.certs / "ca-crl.pem", "--auth", self.people)
        ports = self.folder / "coordinator/coordinator.json"
        wait_for(lambda: ports.exists() and json.loads(ports.read_text())["pid"] == process.pid)
        self.address = f"127.0.0.1:{json.loads(ports.read_text())['port']}"
        return process

    def worker_arguments(self, worker_id, certificate):
        return ["weft-worker", "--coordinator", self.address, "--data-dir",
                self.folder / f"w-{worker_id}", "--worker-id", worker_id, "--cores", "2",
                "--metrics-listen", "", "--run-root", self.folder / "runs", "--data-root",
                self.folder / "data", "--tls-cert", certificate, "--tls-ca", self.certs / "ca.pem"]

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def job(self, name, data="data/text.txt", steps=20):
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({
            "name": name, "model": {"layers": 1, "width": 32, "heads": 2, "context": 32},
            "data": {"train": [data], "tokenizer": {"vocab_size": 300}},
            "train": {"steps": steps, "global_batch": 4, "precision": "fp32"},
            "resources": {"ranks": 2, "threads_per_rank": 1}}))
        return path

    def submit(self, name, *arguments):
        done = self.weft("una", "submit", self.job(name), "-o", "name", *arguments)
        assert done.returncode == OK, done.stderr
        return done.stdout.strip().removeprefix("job/")

    def close(self):
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
                daemon.wait(90)
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_for(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.1)
    raise AssertionError(f"not true within {seconds} s")


def listening_ports(pids):
    """Ports on which these processes listen for TCP, by /proc."""
    inodes = set()
    for pid in pids:
        for fd in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                found = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(fd))
            except OSError:
                continue
            if found:
                inodes.add(found[1])
    ports = set()
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.add(int(fields[1].split(":")[1], 16))
    return ports


class Security(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.secured = Secured()
        cls.addClassCleanup(cls.secured.close)
        cls.secured.start_coordinator()
        cls.secured.start("worker", *cls.secured.worker_arguments(
            "node-1", cls.secured.certs / "worker-node-1.pem"))
        wait_for(lambda: "READY" in cls.secured.weft("viv", "worker", "list").stdout)

    def test_a_job_runs_and_its_audit_names_who_did_what(self):
        s = self.secured
        job = s.submit("trained")
        self.assertEqual(s.weft("viv", "job", "wait", job, "--timeout", "120").returncode, OK)
        described = json.loads(s.weft("viv", "job", "get", job, "-o", "json").stdout)
        self.assertEqual(described["owner"], "una")
        denied = s.weft("viv", "job", "delete", job)
        self.assertEqual(denied.returncode, DENIED)
        self.assertIn("'viv' is viewer and must not call DeleteJob", denied.stderr)
        self.assertIn("hint: ", denied.stderr)
        denied = json.loads(s.weft("viv", "job", "delete", job, "-o", "json").stdout)
        self.assertEqual(denied["code"], "DENIED")
        self.assertTrue(denied["message"].startswith("'viv' is viewer"), denied)
        self.assertEqual(s.weft("una", "job", "delete", job).returncode, OK)
        self.assertEqual(s.weft("una", "audit", "list").returncode, DENIED)
        log = s.weft("ada", "audit", "list", "--object", f"job/{job}", "-o", "json")
        self.assertEqual(log.returncode, OK, log.stderr)
        self.assertEqual([(r["who"], r["method"], r["result"]) for r in json.loads(log.stdout)["items"]],
                         [("una", "SubmitJob", "OK"), ("viv", "DeleteJob", "PERMISSION_DENIED"),
                          ("viv", "DeleteJob", "PERMISSION_DENIED"),
                          ("una", "DeleteJob", "OK")])
        una = s.weft("una", "auth", "whoami", "-o", "name").stdout.strip()
        self.assertEqual(una, "person/una")
        log = s.weft("ada", "audit", "list", "--object", job, "--who", una, "-o", "json")
        self.assertEqual([r["method"] for r in json.loads(log.stdout)["items"]],
                         ["SubmitJob", "DeleteJob"])

    def test_people_are_known_by_token_or_certificate_and_others_are_not(self):
        s = self.secured
        who = json.loads(s.weft("una", "auth", "whoami", "-o", "json").stdout)
        self.assertEqual((who["name"], who["role"]), ("una", "user"))
        nobody = s.run("--server", s.address, "--tls-ca", s.certs / "ca.pem", "job", "list")
        self.assertEqual(nobody.returncode, DENIED, nobody.stderr)
        (s.folder / "wrong.token").write_text("weft_guess")
        (s.folder / "wrong.token").chmod(0o600)
        wrong = s.weft("wrong", "job", "list")
        self.assertEqual(wrong.returncode, DENIED)
        self.assertNotIn("weft_guess", wrong.stderr)
        s.must("certs", "issue", s.certs, "client", "person/viv")
        shown = s.run("--server", s.address, "--tls-ca", s.certs / "ca.pem", "--tls-cert",
                      s.certs / "client-viv.pem", "auth", "whoami")
        self.assertIn("viewer", shown.stdout, shown.stderr)
        entry = s.must("auth", "token", "person/eve", "--file", s.token("eve")).stdout
        self.assertIn("name: eve\n", entry)

    def test_tokens_are_not_sent_in_plain_text_nor_read_from_open_files(self):
        s = self.secured
        open_to_all = s.folder / "open.token"
        open_to_all.write_text("weft_x")
        open_to_all.chmod(0o644)
        refused = s.weft("open", "job", "list")
        self.assertEqual(refused.returncode, USAGE)
        self.assertIn("chmod 600", refused.stderr)
        plain = s.run("--server", "192.0.2.1:7070", "--token-file", s.token("una"), "job", "list")
        self.assertEqual(plain.returncode, USAGE)
        self.assertIn("plain text", plain.stderr)
        # Nor does --insecure send one; without a token it lets calls try.
        plain = s.run("--server", "192.0.2.1:7070", "--insecure", "--token-file", s.token("una"),
                      "job", "list")
        self.assertEqual(plain.returncode, USAGE)
        for server in ("192.0.2.1:7070", "no-such-host.invalid:7070"):
            plain = s.run("--server", server, "--timeout", "1", "job", "list")
            self.assertEqual(plain.returncode, USAGE)
            self.assertIn(f"calls would go to {server} in plain text", plain.stderr)
            self.assertIn("--insecure", plain.stderr)
        plain = s.run("--server", "no-such-host.invalid:7070", "--timeout", "1", "job", "list",
                      WEFT_INSECURE="1")
        self.assertEqual(plain.returncode, UNAVAILABLE, plain.stderr)
        # The right address, but no TLS: nothing but an end of the connection.
        self.assertEqual(s.run("--server", s.address, "--timeout", "3", "job", "list").returncode,
                         UNAVAILABLE)

    def test_tls_is_1_2_or_newer(self):
        s = self.secured
        host, port = s.address.split(":")

        def agreed(version):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(s.certs / "ca.pem")
            context.set_alpn_protocols(["h2"])
            context.set_ciphers("DEFAULT@SECLEVEL=0")  # so that this end would do it
            context.minimum_version = context.maximum_version = version
            with socket.create_connection((host, int(port)), timeout=20) as connection:
                with context.wrap_socket(connection, server_hostname=host) as secure:
                    return secure.version()

        self.assertEqual(agreed(ssl.TLSVersion.TLSv1_2), "TLSv1.2")
        self.assertEqual(agreed(ssl.TLSVersion.TLSv1_3), "TLSv1.3")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            with self.assertRaises(ssl.SSLEOFError):  # the other end hangs up
                agreed(ssl.TLSVersion.TLSv1_1)

    def test_daemons_refuse_what_is_not_safe(self):
        s = self.secured

        def refusal(*arguments):
            done = subprocess.run([BIN / arguments[0], *map(str, arguments[1:])], timeout=60,
                                  capture_output=True, text=True, env=s.environment, cwd=s.folder)
            self.assertEqual(done.returncode, USAGE, done.stderr)
            return done.stderr

        coordinator = [str(a).replace("/coordinator", "/other") if "/coordinator" in str(a) else a
                       for a in s.coordinator_arguments()]
        self.assertIn("--data-root", refusal(*coordinator))
        self.assertIn("--insecure", refusal(*coordinator, "--data-root", s.folder))
        self.assertIn("is not good for the CA", refusal(
            *coordinator, "--data-root", s.folder, "--tls-cert", s.certs / "server.pem",
            "--tls-ca", self.other_ca()))
        worker = ["weft-worker", "--coordinator", "192.0.2.1:7070", "--data-dir", s.folder / "w"]
        self.assertIn("--run-root DIR and --data-root DIR", refusal(*worker))
        worker += ["--run-root", s.folder / "runs", "--data-root", s.folder]
        self.assertIn("hint: --tls-cert and --tls-ca", refusal(*worker))
        self.assertIn("--insecure", refusal(*worker))
        # With it the worker goes on, to the next mistake.
        self.assertIn("no program at", refusal(*worker, "--insecure", "--trainer", "/no/trainer"))
        for pages in ("0.0.0.0:0", "[::]:0", ":0", "192.0.2.7:0"):
            changed = [pages if before == "--metrics-listen" else argument
                       for before, argument in zip([None, *coordinator], coordinator)]
            for daemon in ([*worker, "--metrics-listen", pages], changed):
                refused = refusal(*daemon)
                self.assertIn(f"--metrics-listen: metrics on {pages}", refused)
                self.assertIn("--metrics-insecure", refused)
        allowed = refusal(*worker, "--insecure", "--metrics-listen", "0.0.0.0:0",
                          "--metrics-insecure", "--trainer", "/no/trainer")
        self.assertIn("no program at", allowed)

    def other_ca(self):
        folder = self.secured.folder / "other-ca"
        if not folder.exists():
            self.secured.must("certs", "init", folder)
        return folder / "ca.pem"

    def test_a_worker_cannot_be_another_one(self):
        s = self.secured
        process = s.start("impostor", *s.worker_arguments("node-2", s.certs / "worker-node-1.pem"))
        self.assertEqual(process.wait(90), 4)  # refused, docs/operations.md
        self.assertIn("shows that of 'node-1'", s.log("impostor"))
        self.assertNotIn("node-2", s.weft("viv", "worker", "list").stdout)

    def test_a_revoked_worker_is_shut_out_at_once_and_comes_back_with_a_new_certificate(self):
        s = self.secured
        s.must("certs", "issue", s.certs, "worker", "node-3")
        shutil.copy(s.certs / "worker-node-3.pem", s.folder / "node-3.pem")
        arguments = s.worker_arguments("node-3", s.folder / "node-3.pem")
        process = s.start("node-3", *arguments)
        listed = lambda: s.weft("viv", "worker", "describe", "node-3").stdout
        wait_for(lambda: "READY" in listed())
        named = s.weft("viv", "worker", "describe", "node-3", "-o", "name").stdout.strip()
        self.assertEqual(named, "worker/node-3")
        self.assertEqual(s.must("certs", "revoke", s.certs, "worker", named).stdout.strip(),
                         str(s.certs / "ca-crl.pem"))
        self.assertEqual(process.wait(60), 4)
        self.assertIn("the certificate of worker 'node-3' was revoked", s.log("node-3"))
        self.assertEqual(s.run("certs", "revoke", s.certs, "worker", "node-9").returncode, 3)
        s.must("certs", "issue", s.certs, "worker", "node-3")
        shutil.copy(s.certs / "worker-node-3.pem", s.folder / "node-3.pem")
        again = s.start("node-3", *arguments)
        wait_for(lambda: "READY" in listed())
        again.send_signal(signal.SIGTERM)
        self.assertEqual(again.wait(60), 0)

    def test_jobs_name_files_of_the_declared_folders_only(self):
        s = self.secured
        (s.folder / "data/link.txt").symlink_to(s.folder / "elsewhere.txt")
        for data in ("elsewhere.txt", "data/../elsewhere.txt", "data/link.txt", "/etc/passwd"):
            refused = s.weft("una", "submit", s.job("outside", data))
            self.assertEqual(refused.returncode, USAGE, data)
            self.assertIn("is not below a folder that is allowed", refused.stderr)

    def ranks(self):
        """Processes of the ranks, by their number."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            spec = re.search(rf"{re.escape(str(self.secured.folder))}\S*-(\d+)\.json", line)
            if "weft-trainer" in line and spec:
                found[int(spec[1])] = int(entry.name)
        return found

    def stop_rank_1(self):
        """Stops rank 1 of the job that starts, so that rank 0 waits for it; its process and the ports of
        rank 0. None: they had met before."""
        ranks = {}
        deadline = time.monotonic() + 20
        while ranks.keys() != {0, 1} and time.monotonic() < deadline:
            ranks = self.ranks()
        if ranks.keys() != {0, 1}:
            return None
        try:
            os.kill(ranks[1], signal.SIGSTOP)
        except ProcessLookupError:
            return None
        for _ in range(100):
            if ports := listening_ports([ranks[0]]):
                return ranks[1], ports
            time.sleep(0.05)
        os.kill(ranks[1], signal.SIGCONT)
        return None

    def test_strangers_at_the_ranks_do_not_disturb_a_job(self):
        s = self.secured
        for number in range(6):  # a busy machine may look too late
            job = s.submit(f"visited-{number}")
            if stopped := self.stop_rank_1():
                break
            s.weft("viv", "job", "wait", job, "--timeout", "60")
        self.assertIsNotNone(stopped, "no rank was seen while it waited")
        rank_1, ports = stopped
        try:
            strangers = []
            for port in ports:
                for said in (b"x" * 64, b""):  # a wrong answer, and silence
                    stranger = socket.create_connection(("127.0.0.1", port), timeout=20)
                    self.addCleanup(stranger.close)
                    stranger.sendall(said)
                    if said:
                        heard = b"".join(iter(lambda: stranger.recv(4096), b""))
                        self.assertEqual(len(heard), 32, "a challenge, and then the end")
                    strangers.append(stranger)
        finally:
            os.kill(rank_1, signal.SIGCONT)
        waited = s.weft("viv", "job", "wait", job, "--timeout", "150")
        self.assertEqual(waited.returncode, OK, waited.stderr)
        described = json.loads(s.weft("viv", "job", "get", job, "-o", "json").stdout)
        self.assertEqual(len(described["attempts"]), 1, "no attempt had to be started again")

    def test_no_log_has_a_token(self):
        s = self.secured
        s.weft("una", "job", "list")
        tokens = [s.token(name).read_text().strip() for name in ("ada", "una", "viv")]
        keys = [line for name in ("server.pem", "worker-node-1.pem", "ca-key.pem")
                for line in (s.certs / name).read_text().split("PRIVATE KEY")[1].splitlines()
                if len(line) > 30]
        self.assertGreater(len(keys), 3)
        for path in s.folder.rglob("*"):
            if path.is_file() and path.suffix in (".log", ".db", ".json", ".jsonl", ".db-wal", ".yaml"):
                text = path.read_bytes()
                for secret in tokens + keys:
                    self.assertNotIn(secret.encode(), text, path)
        for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = entry.read_bytes()
            except OSError:
                continue
            for token in tokens:
                self.assertNotIn(token.encode(), line)


class Tampering(unittest.TestCase):
    def test_a_changed_or_missing_record_breaks_the_chain(self):
        s = Secured()
        self.addCleanup(s.close)
        coordinator = s.start_coordinator()
        for name in ("one", "two", "three"):
            s.submit(name)
        self.assertEqual(s.weft("ada", "audit", "list").returncode, OK)
        coordinator.send_signal(signal.SIGTERM)
        coordinator.wait(60)
        database = s.folder / "coordinator/weft.db"
        kept = database.read_bytes()
        for change in ("UPDATE audit SET who = 'somebody' WHERE sequence = 2",
                       "DELETE FROM audit WHERE sequence = 2",
                       "DELETE FROM audit WHERE sequence = 3"):
            with self.subTest(change=change):
                for path in database.parent.glob("weft.db*"):
                    path.unlink()
                database.write_bytes(kept)
                with sqlite3.connect(database) as connection:
                    with self.assertRaisesRegex(sqlite3.IntegrityError, "records of the audit log"):
                        connection.execute(change)
                    connection.execute("DROP TRIGGER audit_is_not_changed")
                    connection.execute("DROP TRIGGER audit_is_not_deleted")
                    connection.execute(change)
                connection.close()
                coordinator = s.start_coordinator()
                log = s.weft("ada", "audit", "list")
                self.assertEqual(log.returncode, FAILED, log.stdout)
                self.assertIn("the audit log was changed", log.stderr)
                coordinator.send_signal(signal.SIGTERM)
                coordinator.wait(60)


class LocalTls(unittest.TestCase):
    def test_up_with_tls_serves_its_owner_alone(self):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-local-tls-"))
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("WEFT_")}
        environment["WEFT_HOME"] = str(folder)
        environment["HOME"] = str(folder / "user")
        (folder / "work").mkdir()

        def weft(*arguments):
            return subprocess.run([BIN / "weft", *map(str, arguments)], capture_output=True,
                                  text=True, timeout=120, cwd=folder / "work", env=environment)

        def plan_with(data):
            data.parent.mkdir(exist_ok=True)
            data.write_text(english(200))
            (folder / "job.json").write_text(json.dumps({
                "name": "planned", "model": {"layers": 1, "width": 32, "heads": 2, "context": 32},
                "data": {"train": [str(data)], "tokenizer": {"vocab_size": 300}},
                "train": {"steps": 20, "global_batch": 4, "precision": "fp32"}}))
            return weft("plan", folder / "job.json")

        for start in range(2):  # the second time with the certificates of the first
            up = weft("up", "--tls", "--workers", "1", "--listen", "127.0.0.1:0",
                      "--metrics-listen", "127.0.0.1:0")
            self.addCleanup(weft, "down")
            self.assertEqual(up.returncode, OK, up.stderr)
            who = json.loads(weft("auth", "whoami", "-o", "json").stdout)
            self.assertEqual((who["name"], who["role"]), ("admin", "admin"))
            address = json.loads((folder / "local.json").read_text())["server"]
            ca = folder / "certs/ca.pem"
            plain = weft("--server", address, "--timeout", "3", "worker", "list")
            self.assertEqual(plain.returncode, UNAVAILABLE)
            nobody = weft("--server", address, "--tls-ca", ca, "worker", "list")
            self.assertEqual(nobody.returncode, DENIED)
            if start == 0:
                outside = pathlib.Path(tempfile.mkdtemp(prefix="weft-outside-"))
                self.addCleanup(shutil.rmtree, outside, ignore_errors=True)
                refused = plan_with(outside / "text.txt")
                self.assertEqual(refused.returncode, USAGE, refused.stdout)
                self.assertIn("is not below a folder that is allowed", refused.stderr)
                self.assertIn("--data-root of weft-coordinator or `weft up`", refused.stderr)
                for inside in ("work/text.txt", "user/text.txt", "runs/text.txt"):
                    planned = plan_with(folder / inside)
                    self.assertEqual(planned.returncode, OK, planned.stderr)
                client = (folder / "certs/client-admin.pem").read_text()
                self.assertEqual(weft("down").returncode, OK)
        self.assertEqual((folder / "certs/client-admin.pem").read_text(), client)


if __name__ == "__main__":
    unittest.main(verbosity=2)
