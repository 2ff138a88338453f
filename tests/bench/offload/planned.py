#!/usr/bin/env python3
"""What planning recomputation and sending to the host together is worth, predicted and measured.

    python tests/bench/offload/planned.py --binary build/release/bin/planned_offload_bench \
        --device-bytes 96000000 --links 200000000,400000000,800000000,1600000000 \
        --output docs/benchmarks/planned_offload.json

Runs planned_offload_bench, adds the processor to its report, and prints the table of the page.
"""

from bench import measured


def table(report):
    print("| link MB/s | | blocks run again | their attention | sent | s a step, predicted | measured |"
          " s it stood still, predicted | measured | device MB | host MB |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in sorted(report["rows"], key=lambda row: row["link_bytes_per_second"]):
        link = row["link_bytes_per_second"]
        print(f"| {link / 1e6:.0f} " if link else "| - ", end="")
        print(f"| {row['way']} | {row['replayed_blocks']} | {row['replayed_attentions']} "
              f"| {row['sent_blocks']} "
              f"| {row['predicted_step_seconds']:.3f} | {row['step_seconds']:.3f} "
              f"| {row['predicted_stalled_seconds']:.3f} | {row['stalled_seconds']:.3f} "
              f"| {row['device_bytes'] / 1e6:.1f} | {row['host_bytes'] / 1e6:.1f} |")


def main():
    table(measured())


if __name__ == "__main__":
    main()
