"""Completion as a user has it: each shell by itself, with the script that `weft completion` prints."""

import os
import pty
import select
import shutil
import subprocess
import time
import unittest

from weft_cluster import BIN, Cluster

# What is typed after `weft`, and the one thing that it becomes.
ONE_ANSWER = [
    ("job su", "submit"),
    ("-o js", "json"),
    ("--server submit --timeout 1 job su", "submit"),
    ("plan a.yaml --goal c", "cheapest"),
    ("job submit --dr", "--dry-run"),
    ("completion z", "zsh"),
    ("submit only-", "only-file.yaml"),
]


class Completion(unittest.TestCase):
    SHELL = ""

    def setUp(self):
        self.assertIsNotNone(shutil.which(self.SHELL),
                             f"{self.SHELL} is not installed; hint: deploy/install.sh")
        self.cluster = Cluster()
        self.addCleanup(self.cluster.close)
        (self.cluster.folder / "only-file.yaml").write_text("")
        home_bin = self.cluster.folder / "bin"
        home_bin.mkdir()
        (home_bin / "weft").symlink_to(BIN / "weft")
        self.environment = dict(self.cluster.environment, HOME=str(self.cluster.folder), TERM="dumb")

    def shell(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, timeout=30,
                              env=self.environment, cwd=self.cluster.folder)
        self.assertEqual(done.stderr, "")
        return done.stdout.split()


class Bash(Completion):
    SHELL = "bash"

    def complete(self, *words):
        """What is offered for the last of these words after `weft`."""
        script = self.cluster.weft("completion", "bash").out
        ask = (script + 'COMP_WORDS=(weft "$@"); COMP_CWORD=$#; _weft; printf "%s\\n" '
               '"${COMPREPLY[@]}"')
        return self.shell("bash", "-c", ask, "bash", *words)

    def test_offers_what_can_come_and_never_hangs(self):
        # The values are those of the option before, which is none of the commands.
        self.assertIn("json", self.complete("-o", ""))
        self.assertIn("submit", self.complete("-o", "json", ""))
        self.assertIn("RUNNING", self.complete("job", "wait", "x", "--for", ""))
        self.assertEqual(self.complete("plan", "--goal", "=", "c"), ["cheapest"])
        self.assertIn("--server", self.complete("job", "submit", "--"))
        for line, answer in ONE_ANSWER[:-1]:  # files are bash's own default
            self.assertEqual(self.complete(*line.split()), [answer])
        for words in [("nonsense", "more", ""), ("-o",), ("--", ""), ("job", "", ""), ("-", ""),
                      ("logs", ""), ("submit", "no"), ("--no-such", "job", ""), ("'\"$(x)", "")]:
            self.complete(*words)  # no answer, within the time


class Fish(Completion):
    SHELL = "fish"

    def complete(self, line):
        return self.shell("fish", "--no-config", "-c",
                          'weft completion fish | source; complete -C $argv[1]', line)

    def test_offers_what_can_come(self):
        for line, answer in ONE_ANSWER:
            self.assertEqual(self.complete("weft " + line), [answer])
        self.assertEqual(self.complete("~/bin/weft job su"), ["submit"])
        self.assertEqual(self.complete("weft plan --goal=c"), ["--goal=cheapest"])
        self.assertIn("describe", self.complete("weft worker "))
        for line in ["nonsense more ", "-- ", "logs ", "--no-such job ", "'\"$(touch made) "]:
            self.complete("weft " + line)
        self.assertFalse((self.cluster.folder / "made").exists())


class Zsh(Completion):
    SHELL = "zsh"

    def setUp(self):
        super().setUp()
        pid, self.terminal = pty.fork()
        if pid == 0:
            os.chdir(self.cluster.folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], self.environment)
        self.addCleanup(self.end, pid)
        self.type("PS1='> '; autoload -Uz compinit; compinit -u -D; "
                  "source <(weft completion zsh); echo READ''Y\n")
        self.await_text("READY")

    def end(self, pid):
        os.close(self.terminal)  # hangs up
        os.waitpid(pid, 0)

    def type(self, keys):
        os.write(self.terminal, keys.encode())

    def await_text(self, wanted, seconds=20):
        """Everything that the shell writes until that is in it."""
        text, deadline = "", time.monotonic() + seconds
        while wanted not in text:
            ready = select.select([self.terminal], [], [], max(0, deadline - time.monotonic()))[0]
            self.assertTrue(ready, f"{wanted!r} does not come after {text!r}")
            text += os.read(self.terminal, 65536).decode(errors="replace")
        return text

    def test_offers_what_can_come(self):
        lines = ONE_ANSWER + [("plan --goal=c", "--goal=cheapest")]
        for program in ("weft", "~/bin/weft"):
            for line, answer in lines:
                begin = " ".join([program, *line.split()[:-1]])
                self.type(f"{program} {line}\t")
                self.await_text(f"{begin} {answer} ")
                self.type("\x15")  # takes the line back
        self.type("weft worker \t")
        self.await_text("describe")
        # What is typed is not run.
        self.type("\x15weft '\"$(touch made) \t\x15echo DON''E\n")
        self.await_text("DONE")
        self.assertFalse((self.cluster.folder / "made").exists())


if __name__ == "__main__":
    unittest.main()
