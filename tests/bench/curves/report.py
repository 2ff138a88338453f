"""What an experiment shows: claims, a table, panels of curves; and how jobs are varied."""

import copy
import dataclasses
import math
import textwrap

from curves.runs import Run, final_loss


@dataclasses.dataclass
class Series:
    label: str
    points: list
    markers: bool = False


@dataclasses.dataclass
class Panel:
    title: str
    x: str
    y: str
    series: list
    log_x: bool = False
    y_limits: tuple = None
    level: tuple = None  # (value, label) of a horizontal line


@dataclasses.dataclass
class Claim:
    text: str
    holds: bool


@dataclasses.dataclass
class Report:
    title: str
    text: str  # paragraphs with an empty line between
    claims: list
    table: list  # rows of cells, the first is the head
    panels: list


def wrapped(text, indent=""):
    return textwrap.fill(text, 110, subsequent_indent=indent, break_long_words=False,
                         break_on_hyphens=False)


def section(name, report, plots):
    """A report in Markdown; `plots` is where the charts are, seen from the page, or None."""
    head, *rows = report.table
    lines = [f"## {report.title}", "", "\n\n".join(map(wrapped, report.text.split("\n\n"))), ""]
    lines += [wrapped(f"- {'Holds' if claim.holds else '**Does not hold**'}: {claim.text}", "  ")
              for claim in report.claims]
    if plots:
        lines += ["", f"![{report.title}]({plots}/{name}.svg)"]
    lines += [""] + ["| " + " | ".join(cells) + " |"
                     for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines) + "\n"


def changed(job, **sections):
    job = copy.deepcopy(job)
    for section, fields in sections.items():
        job[section].update(fields)
    return job


def fixed(value, digits=4):
    return f"{value:.{digits}f}" if math.isfinite(value) else "diverged"


def by_rate(prefix, rates, job_of):
    """A run for each learning rate, by rate."""
    return {rate: Run(f"{prefix}-{rate:g}".replace(".", "-"), job_of(rate), may_diverge=True)
            for rate in rates}


def best_rate(runs, results):
    return min(runs, key=lambda rate: final_loss(results[runs[rate].name]))


def rate_series(label, runs, results, ceiling):
    """Final loss by rate; what broke off or is above `ceiling` is drawn there."""
    return Series(label, [[rate, min(final_loss(results[run.name]), ceiling)]
                          for rate, run in runs.items()], markers=True)
