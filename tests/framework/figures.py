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

    def __init__(self, path, measured=(), stays=lambda row: False):
        """`measured`: the numbers of this run; a row that the file has stays until its number comes,
        or longer where `stays` says so. Without numbers all rows are new."""
        self.path = path
        self.stays = stays
        self.machine = f"{cpu_name()}, {os.cpu_count()} cores"
        self.rows = []
        self.kept = []
        self.since = self.date = datetime.date.today().isoformat()
        if path and measured and pathlib.Path(path).exists():
            self.keep(json.loads(pathlib.Path(path).read_text()))

    def keep(self, said):
        if said["machine"] != self.machine:
            sys.exit(f"{self.path} was measured on an {said['machine']}, this is an {self.machine}; "
                     "hint: name another file, or measure all numbers")
        self.kept = said["rows"]
        self.since = said["date"].split(" to ")[0]

    def add(self, number, what, measured, target, unit, holds):
        """`target` in words, as "< 5"; `holds` whether `measured` reaches it."""
        row = {"number": number, "what": what, "measured": measured, "target": target,
               "unit": unit, "holds": bool(holds)}
        self.kept = [kept for kept in self.kept if kept["number"] != number or self.stays(kept)]
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
        mixed = self.kept and self.since != self.date
        date = f"{self.since} to {self.date}" if mixed else self.date
        text = {"machine": self.machine, "date": date, "rows": rows}
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
