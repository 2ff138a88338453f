#!/usr/bin/env python3
"""Groups sources of targets that can be compiled as one.

    tests/unity_groups.py MOST

Reads lines of a target, its folder and its files, and prints for each group of two files or more a
line of its target and its files. A group has MOST files at the most. What one of them has in an
unnamed namespace no other one has, sees in our headers or hides: their unnamed namespaces become one.
Declarations are found by their place: at the start of a line, as clang-format puts them. What is
there in a string too is one more name, and costs nothing but a smaller group.
"""

import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
TYPE = re.compile(r"(?:struct|class|union|enum class|enum) (?:alignas\(\d+\) )?(\w+)")
ALIAS = re.compile(r"using (\w+) =")
VARIABLE = re.compile(r"(\w+)(?:\[[^]]*\])? =(?!=)")
LAST = re.compile(r"([\w:~]+)\s*(?:\[[^]]*\])?\s*$")
LOCAL = re.compile(r"^ +(?:.*?\b(k[A-Z]\w*)(?:\[[^]]*\])? =(?!=)|(?:using|struct|class) (\w+))",
                   re.MULTILINE)
# What files that come later would see, or a program has once.
ALONE = re.compile(r'#\s*define|^ +using namespace|extern "C"|^int main\(', re.MULTILINE)
# Names that a file has from elsewhere, so that it goes together with files that have them too.
USING = re.compile(r"^using namespace ([\w:]+);", re.MULTILINE)


def declared(line):
    """Names that a line declares which starts at the margin."""
    line = re.sub(r"^template <.*?> (?=\w)", "", line)
    if match := TYPE.match(line) or ALIAS.match(line):
        return [match[1]]
    if re.match(r"using |namespace|template|TEST|INSTANTIATE_", line):
        return []
    names = VARIABLE.findall(line) if re.match(r"const|static|inline|thread_local", line) else []
    match = LAST.search(re.split(r"[({;=]", line)[0])
    if match and "::" not in match[1]:
        names.append(match[1])
    return names


@functools.cache
def read(path):
    """Names that a file keeps to itself, and those that no other file may have: of headers, of locals."""
    text = path.read_text(encoding="utf-8")
    own, taken = set(), {constant or kind for constant, kind in LOCAL.findall(text)}
    unnamed = False
    for line in text.splitlines():
        if line == "namespace {" or line == "}  // namespace":
            unnamed = line.startswith("namespace")
        elif re.match(r"[A-Za-z]", line):
            kept = unnamed or line.startswith(("static ", "using "))
            (own if kept else taken).update(declared(line))
    for header in re.findall(r'^#include "(.*)"', text, re.MULTILINE):
        if (ROOT / header).is_file():
            taken.update(*read(ROOT / header))
    return own, taken


def grouped(paths, most, folder=ROOT):
    """Lists of paths, which may be relative to the folder, in their order."""
    groups = []  # files, namespaces that they use, and both kinds of names; None: nothing is added
    for path in paths:
        file = (folder / path).resolve()
        text = file.read_text(encoding="utf-8")
        if ALONE.search(text):
            groups.append(([path], None, None, None))
            continue
        using = set(USING.findall(text))
        own, taken = read(file)
        for files, all_using, theirs, all_taken in groups:
            if (using == all_using and len(files) < most and
                    not own & (theirs | all_taken) and not theirs & taken):
                files.append(path)
                theirs |= own
                all_taken |= taken
                break
        else:
            groups.append(([path], using, set(own), set(taken)))
    return [files for files, *_ in groups]


if __name__ == "__main__":
    for line in sys.stdin:
        target, source_dir, *sources = line.split()
        for group in grouped(sources, int(sys.argv[1]), pathlib.Path(source_dir)):
            if len(group) > 1:
                print(target, *group)
