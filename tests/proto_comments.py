#!/usr/bin/env python3
"""Checks the comments of the fields of jobs (PROTOS) against docs/job_reference.md, which is written
from the specs.

    tests/proto_comments.py

Every field of a job has a comment, and the default that the comment names is the default of the
spec: "Default: VALUE." A message, a list, an empty text and a required field need none. A field
with choices names them all, in the order of the spec: "One of: A | B."
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROTOS = [f"proto/weft/v1/{name}.proto" for name in ("job", "model", "train")]
FIELD = re.compile(r"(?:(optional|repeated) )?([\w.<>, ]+) (\w+) = \d+;")


def messages(path, text):
    """Of each message its fields: (where, type, name, comment); a list of messages has no type."""
    found, fields, comment = {}, None, []
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if line.startswith("//"):
            comment.append(line.lstrip("/ "))
            continue
        if start := re.match(r"message (\w+)", line):
            fields = found.setdefault(start[1], [])
        elif field := FIELD.match(line):
            type_ = "list" if field[1] == "repeated" else field[2]
            fields.append((f"{path}:{number}", type_, field[3], " ".join(comment)))
        comment = []
    return found


def reference(text):
    """By path of a field its default, and what is legal."""
    rows = re.findall(r"^\| `([\w.]+)` \| [^|]* \| (`[^`]*`|required) \| ((?:\\\||[^|])*) \|", text,
                      re.MULTILINE)
    return {path: (value.strip("`"), legal.replace("\\|", "|")) for path, value, legal in rows}


def said_default(comment):
    """The default that a comment names, or None."""
    said = re.search(r"Default: (.+?)(?:\.(?:\s|$)|$)", comment)
    return said[1] if said else None


def said_choices(comment):
    """The choices that a comment lists, or None."""
    said = re.search(r"One of: (.+?)\.(?:\s|$)", comment)
    return said[1] if said else None


def equal(said, default):
    """Whether a comment and a spec say the same; of an unset field a comment says what it means."""
    if default == "none" or said == default or (said, default) == ("empty", '""'):
        return True
    try:
        return float(said.replace(",", "")) == float(default)
    except ValueError:
        return False


def described_elsewhere(type_, path):
    """Whether the page has one row for a message, because it describes such messages elsewhere."""
    return type_ == "ModelSpec" and path != "model"


def problems(found, spec, message, prefix=""):
    for place, type_, name, comment in found[message]:
        path = prefix + name
        where = f"{place}: {path}"
        if not comment:
            yield f"{where} has no comment; hint: say what it means, its unit and its default"
        if type_ in found:
            if not described_elsewhere(type_, path):
                yield from problems(found, spec, type_, path + ".")
            continue
        if path not in spec:
            yield f"{where} is not in docs/job_reference.md; hint: a visit line in common/spec"
            continue
        default, legal = spec[path]
        said = said_default(comment)
        if said is not None and not equal(said, default):
            yield (f"{where} says \"Default: {said}\", and the spec has {default!r}"
                   "; hint: change the comment")
        if said is None and default not in ("required", "[]", '""'):
            yield f"{where} names no default; hint: \"Default: {default}.\""
        choices = said_choices(comment)
        if choices != legal and (choices is not None or " | " in legal):
            yield f"{where} lists the choices {choices}; hint: \"One of: {legal}.\""


def main():
    found = {}
    for proto in PROTOS:
        found.update(messages(proto, (ROOT / proto).read_text(encoding="utf-8")))
    spec = reference((ROOT / "docs/job_reference.md").read_text(encoding="utf-8"))
    wrong = list(problems(found, spec, "JobSpec"))
    wrong += [f"docs/job_reference.md: {path} is not in {' '.join(PROTOS)}" for path in spec
              if path not in paths(found, "JobSpec")]
    sys.exit("\n".join(wrong) or 0)


def paths(found, message, prefix=""):
    """Paths of all fields of a message."""
    for _, type_, name, _ in found[message]:
        yield prefix + name
        if type_ in found and not described_elsewhere(type_, prefix + name):
            yield from paths(found, type_, prefix + name + ".")


if __name__ == "__main__":
    main()
