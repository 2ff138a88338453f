"""Figures that are compared with targets: rows of JSON, and of a page."""

import datetime
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "bench"))
from machine import cpu_name  # noqa: E402


class Figures:
    """Rows of number, what, measured, target, unit and holds. Printed as they come."""

    def __init__(self, path, measured=()):
        """`measured`: the numbers of this run; rows of others that the file has stay. None: all
        rows are new."""
        self.path = path
        self.machine = f"{cpu_name()}, {os.cpu_count()} cores"
        self.rows = []
        self.kept = []
        self.date = datetime.date.today().isoformat()
        if path and measured and pathlib.Path(path).exists():
            self.keep(json.loads(pathlib.Path(path).read_text()), measured)

    def keep(self, said, measured):
        if said["machine"] != self.machine:
            sys.exit(f"{self.path} was measured on an {said['machine']}, this is an {self.machine}; "
                     "hint: name another file, or measure all numbers")
        self.kept = [row for row in said["rows"] if row["number"] not in measured]
        since = said["date"].split(" to ")[0]
        if self.kept and since != self.date:
            self.date = f"{since} to {self.date}"

    def add(self, number, what, measured, target, unit, holds):
        """`target` in words, as "< 5"; `holds` whether `measured` reaches it."""
        row = {"number": number, "what": what, "measured": measured, "target": target,
               "unit": unit, "holds": bool(holds)}
        self.rows.append(row)
        print(f"{number:>3} {what}: {measured} {unit} (target {target})"
              f"{'' if holds else '  MISSED'}", flush=True)
        self.write()

    def below(self, number, what, measured, limit, unit):
        """A figure that must be less than `limit`."""
        self.add(number, what, round(measured, 4), f"< {limit}", unit, measured < limit)

    def equal(self, number, what, measured, wanted, unit):
        """A count that must be just this."""
        self.add(number, what, measured, f"{wanted}", unit, measured == wanted)

    def write(self):
        """All rows so far, so that an interrupted run leaves what it measured."""
        if not self.path:
            return
        rows = sorted(self.kept + self.rows, key=lambda row: row["number"])
        text = {"machine": self.machine, "date": self.date, "rows": rows}
        pathlib.Path(self.path).write_text(json.dumps(text, indent=1) + "\n")

    def all_hold(self):
        """Those of this run."""
        return all(row["holds"] for row in self.rows)


def table(path):
    """The rows of a file as Markdown, for the page that shows them."""
    said = json.loads(pathlib.Path(path).read_text())
    lines = [f"On an {said['machine']}, {said['date']}:", "",
             "| | what | measured | target | |", "|---|---|---|---|---|"]
    for row in said["rows"]:
        unit = f" {row['unit']}" if row["unit"] else ""
        target = f"{row['target']}{unit}"
        lines.append(f"| {row['number']} | {row['what']} | {row['measured']}{unit} | {target} | "
                     f"{'holds' if row['holds'] else 'missed'} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(sys.argv[1]), end="")
