#!/usr/bin/env python3
"""How fast the patterns of well-known tokenizers cut text: hand-written code and PCRE2.

    cmake --build --preset release --target split_regex_bench
    python tests/bench/split_regex.py --binary build/release/bin/split_regex_bench \
        --json docs/benchmarks/split_regex.json --markdown docs/benchmarks/split_regex.md

Both cut the same text in turns, on one thread: the project's own pages, repeated to some MB.
"""

import argparse
import datetime
import json
import pathlib
import tempfile

from contestant import run
from machine import cpu_name
from own_pages import text_of_pages

WAYS = ("hand-written", "PCRE2")


def page(report):
    lines = ["# CPU: how fast patterns cut text", "",
             "Written by `tests/bench/split_regex.py`. The patterns by which well-known tokenizers cut "
             f"text before they merge bytes, on {report['text_bytes'] / 1e6:.1f} MB of the project's own "
             "pages, on one thread. The hand-written code and PCRE2 with its JIT compiler take turns; "
             f"medians of {report['rounds']} rounds. {report['cpu']}, {report['date']}.", "",
             "| pattern | hand-written, MB/s | PCRE2, MB/s | times as fast |", "|---|---|---|---|"]
    rates = {}
    for row in report["rows"]:
        rates.setdefault(row["pattern"], {})[row["way"]] = row["bytes_per_second"] / 1e6
    for pattern, by_way in rates.items():
        own, library = (by_way.get(way) for way in WAYS)
        cells = [f"{own:.0f}", f"{library:.0f}", f"{own / library:.2f}"] if own else [
            "", f"{library:.0f}", ""]
        lines.append(f"| {pattern} | " + " | ".join(cells) + " |")
    lines += ["", "Raw: [split_regex.json](split_regex.json). Why both exist: "
              "[decision 8](../decisions/0008-split-patterns-run-in-pcre2.md).", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", type=pathlib.Path, required=True)
    parser.add_argument("--megabytes", type=float, default=4, help="at least this much text")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    options = parser.parse_args()
    pages = text_of_pages().encode()
    text = pages * max(1, -int(-1e6 * options.megabytes // len(pages)))
    with tempfile.NamedTemporaryFile() as file:
        file.write(text)
        file.flush()
        rows = json.loads(run([options.binary, file.name, "--rounds", str(options.rounds)]))
    report = {"cpu": cpu_name(), "date": datetime.date.today().isoformat(),
              "text_bytes": len(text), "rounds": options.rounds, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.markdown:
        options.markdown.write_text(page(report))
    print(page(report))


if __name__ == "__main__":
    main()
