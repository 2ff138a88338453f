#pragma once

namespace weft::kernels::cpu {

/// How often a thread that waits for the others of its parallel loop looks again before it sleeps.
/// That lasts longer than most gaps between loops; on a busy machine, where the others may have no
/// core, it wastes microseconds of a core and not milliseconds.
/// docs/benchmarks/wait_policy.md has the measurements.
constexpr char kSpinCount[] = "3000";

/// Has GNU OpenMP's threads spin that often only, in this process and those it starts, unless the
/// environment says how they wait (OMP_WAIT_POLICY or GOMP_SPINCOUNT). The library reads that while
/// the program is loaded, so the program is replaced by itself, once, with the same arguments: call
/// this before anything has an effect. Returns when there is nothing to change, and also when the
/// system refuses; threads then wait as the library has it.
void BoundSpinning();

}  // namespace weft::kernels::cpu
