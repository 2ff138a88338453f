#!/usr/bin/env python3
"""Every number that the service is measured by has a row, and every row a test."""

import importlib.machinery
import importlib.util
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# Left out: 22, 26 and 27 are about upgrades and etcd.
NUMBERS = {*range(1, 22), 23, 24, 25, *range(28, 34)}


def load(name, path):
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


CHAOS = load("chaos_run", ROOT / "tests/chaos/run.py")
SERVICE = load("service_run", ROOT / "tests/bench/service")


def tests_of(folder):
    """(suite, name, file) of all tests below it."""
    for path in folder.rglob("*_test.cc"):
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", path.read_text(), re.M):
            yield suite, name, path


class Rows(unittest.TestCase):
    def test_have_every_number(self):
        chaos = {number for numbers, _ in CHAOS.PARTS for number in numbers}
        service = (ROOT / "tests/bench/service").read_text()
        service = set(map(int, re.findall(r"self\.(?:figures\.\w+|latencies)\((\d+),", service)))
        self.assertEqual(chaos | service, NUMBERS)
        # Those whose rows a part of the load replaces are those that it measures.
        self.assertEqual({number for part in SERVICE.PARTS.values() for number in part}, service)
        self.assertEqual(SERVICE.numbers_of(["workers", "queue"]), [5, 6, 7])
        self.assertEqual(SERVICE.numbers_of(SERVICE.PARTS), [])

    def test_of_the_load_stay_where_their_part_does_not_run(self):
        passes = {"number": 5, "what": f"{SERVICE.PASS_OVER} 3 queued jobs"}
        calls = {"number": 5, "what": "get with 3 jobs queued"}
        for parts, kept in ((["queue"], [passes]), (["passes"], [calls]), (["restart"], [passes, calls]),
                            (["queue", "passes"], [])):
            with self.subTest(parts):
                self.assertEqual([row for row in (passes, calls) if SERVICE.stays(row, parts)], kept)

    def test_name_tests_that_their_program_has(self):
        known = [found for folder in ("coordinator", "tests", "worker")
                 for found in tests_of(ROOT / folder)]
        for row in CHAOS.TESTS:
            for pattern in row.tests.split(":"):
                with self.subTest(row.what, pattern=pattern):
                    suite, _, name = pattern.partition(".")
                    suite = suite.rpartition("/")[2]
                    prefix = re.split(r"[*/]", name)[0]
                    files = {path for a, b, path in known if a == suite and b.startswith(prefix)}
                    self.assertTrue(files, "no test has this name")
                    for path in files:
                        self.assertIn(row.program, (path.parent / "CMakeLists.txt").read_text())

    def test_compare_what_their_tests_report(self):
        for row in CHAOS.TESTS:
            suites = {pattern.partition(".")[0].rpartition("/")[2] for pattern in row.tests.split(":")}
            text = "".join(path.read_text() for folder in ("coordinator", "tests", "worker")
                           for path in {file for suite, _, file in tests_of(ROOT / folder)
                                        if suite in suites})
            text += (ROOT / "tests/chaos/chaos.h").read_text()
            for name in [row.measured, *re.findall(r"\{(\w+)\}", row.what)]:
                with self.subTest(row.what):
                    self.assertIn(f'"{name}"' if name else "", text)


if __name__ == "__main__":
    unittest.main()
