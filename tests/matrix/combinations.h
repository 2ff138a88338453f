#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "tests/matrix/techniques.h"

namespace weft::testing {

/// A choice of each axis, by its number there.
using Combination = std::vector<size_t>;

/// A tiny job that trains this way.
JobSpec JobOf(const Combination& combination);

/// "tensor 2, zero_stage 1"; "plain".
std::string NameOf(const Combination& combination);

/// ValidateJob accepts it, and it takes few enough ranks for a test.
bool IsLegal(const Combination& combination);

/// The same without the choices that `leave_out` is true for; never asked for kKeepsOther.
Combination Without(const Combination& combination, const std::function<bool(Effect)>& leave_out);

/// Legal combinations, the same ones each time. First one for each choice, with the plain ways
/// otherwise where that is legal; then each two choices that are legal together, at most with a
/// third one's help, are in one of them. Filled up to `least`.
std::vector<Combination> CoveringSet(size_t least);

}  // namespace weft::testing
