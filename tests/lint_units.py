#!/usr/bin/env python3
"""Writes what lint.sh has clang-tidy look at: several sources as one, so that headers are read once.

    tests/lint_units.py BUILD OUTPUT FILE...

Takes how each file is compiled from BUILD and writes OUTPUT/compile_commands.json with a source for
each group of files that are compiled alike. Prints for each of them its path and the files in it.
Fails where a using-declaration is not used: clang-tidy looks for those in no file that is included.
"""

import collections
import json
import os
import pathlib
import re
import shlex
import sys

from unity_groups import grouped

MOST = 40
# Options that make two readings of a source differ: our own switches, instruction sets, our folders. What
# else some targets have and others lack (libraries' macros and headers, optimisation) all can have.
DIFFERS = re.compile(r"-DWEFT_|-m|-I")


def combined(words):
    """Options of a command, each with its argument after a line's end; without precompiled headers."""
    options = []
    for word in words:
        if options and options[-1] in ("-isystem", "-include"):
            options[-1] += "\n" + word
        else:
            options.append(word)
    return [option for option in options if not option.startswith("-include")]


def unused(path):
    """Using-declarations of a file whose name is nowhere else in it."""
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return [f"{path}: using-declaration of {name} is not used"
            for name in re.findall(r"^ *using [\w:]+::(\w+);", text, re.MULTILINE)
            if len(re.findall(rf"\b{name}\b", text)) == 1]


def main():
    build, output = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    wanted = {os.path.abspath(path) for path in sys.argv[3:]}
    commands = collections.defaultdict(list)
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if entry["file"] in wanted:
            commands[entry["file"]].append(entry)
    alike = collections.defaultdict(list)  # files by how they are read: once, or several times
    shared = {}  # what the compiler's options say of any of them, by what makes readings differ
    for path in sorted(commands):
        readings = []
        for entry in commands[path]:
            words = shlex.split(entry["command"])
            at = words.index("-o")
            options = combined(words[1:at] + words[at + 2:-2])
            differs = tuple(option for option in options if DIFFERS.match(option))
            shared.setdefault(differs, {}).update(dict.fromkeys(options))
            readings.append(differs)
        alike[tuple(sorted(readings))].append(path)

    output.mkdir(parents=True, exist_ok=True)
    database, lines = [], []
    for readings, paths in alike.items():
        for files in grouped(paths, MOST):
            source = files[0]
            if len(files) > 1:
                source = output / f"{len(database)}.cc"
                source.write_text("".join(
                    f'#include "{path}"  // NOLINT(bugprone-suspicious-include)\n' for path in files))
            for differs in readings:
                options = [word for option in shared[differs] for word in option.split("\n")]
                database.append({"directory": str(build), "file": str(source),
                                 "arguments": ["c++", *options, "-c", str(source)]})
            lines.append(" ".join(map(str, [source, *files])))
    (output / "compile_commands.json").write_text(json.dumps(database))
    print("\n".join(lines))  # who reads them starts at once
    sys.exit("\n".join(line for path in sys.argv[3:] for line in unused(path)) or 0)


if __name__ == "__main__":
    main()
