#!/usr/bin/env bash
# Kills, stops and starves a real cluster and compares what comes of it with targets:
#   tests/chaos/run.sh [--json FILE] [--repeats N] [--waiting N] [--workloads N] [--operations N]
#                      [--seeds N] [--soak-minutes N] [--fuzz-minutes N] [--only NUMBER...]
# See docs/benchmarks/chaos.md.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec python3 tests/chaos/run.py "$@"
