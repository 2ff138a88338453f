#!/usr/bin/env python3
"""What fits a device of limited memory by what resides outside it, and how fast it trains there.

    python tests/bench/offload/run.py --binary build/release/bin/offload_bench --device-bytes 67108864 \
        --link 400000000 \
        --output docs/benchmarks/offload.json

Runs offload_bench, adds the processor to its report, and prints the tables of the page.
"""

from bench import measured


def mib(number):
    return f"{number / 2**20:.1f}"


def largest_table(report):
    print("| | width x layers | parameters | 16 bytes each, over the device | device MiB, predicted |"
          " taken | next width would take | host MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in report["largest"]:
        print(f"| {row['policy']} | {row['width']} x {row['layers']} "
              f"| {row['parameters'] / 1e6:.2f} M | {row['state_over_device']:.1f} "
              f"| {mib(row['predicted_device_bytes'])} | {mib(row['device_bytes'])} "
              f"| {mib(row['next_predicted_bytes'])} | {mib(row['host_bytes'])} |")


def speed_table(speed):
    print(f"{speed['tokens']} tokens a step, {speed['computing_seconds']:.3f} s with all on the "
          f"device, files at {speed['file_bytes_per_second'] / 1e9:.2f} GB/s:\n")
    print("| | MB down | MB up | s on the link | s on files | s a step | s it stood still | bound "
          "| of it | bound in order | of it |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in speed["policies"]:
        in_order = "| | "
        if "bound_in_order_seconds" in row:
            in_order = (f"| {row['bound_in_order_seconds']:.3f} "
                        f"| {100 * row['share_of_bound_in_order']:.0f} % ")
        print(f"| {row['policy']} | {row['bytes_down'] / 1e6:.1f} | {row['bytes_up'] / 1e6:.1f} "
              f"| {row['link_seconds']:.3f} | {row['file_seconds']:.3f} "
              f"| {row['step_seconds']:.3f} "
              f"| {row['stalled_seconds']:.3f} | {row['bound_seconds']:.3f} "
              f"| {100 * row['share_of_bound']:.0f} % {in_order}|")
    print()


def main():
    report = measured()
    largest_table(report)
    print()
    for speed in report["speed"]:
        speed_table(speed)


if __name__ == "__main__":
    main()
