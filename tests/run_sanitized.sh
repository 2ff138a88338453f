#!/usr/bin/env bash
# Runs the unit tests under AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer.
#   tests/run_sanitized.sh [--all]     --all: also the tests that start processes
set -euo pipefail
cd "$(dirname "$0")/.."

labels=(--label unit)
[ "${1:-}" = --all ] && labels=()
for preset in asan tsan; do
  ./tests/run.sh --preset $preset "${labels[@]}"
done
