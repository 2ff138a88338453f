#pragma once

#include <string>
#include <vector>

#include "tests/matrix/combinations.h"

namespace weft::testing {

// The combinations that the matrix trains take seconds to find, and each test is a process of its
// own. So the build finds them once (covering_set_main.cc), and tests read them: a line for each,
// with its choice of each axis.

/// Writes combinations to `path`; whether that worked.
bool WriteCombinations(const std::string& path, const std::vector<Combination>& combinations);

/// Those of the file at `path`, which is of this build: else it ends the process.
std::vector<Combination> ReadCombinations(const std::string& path);

}  // namespace weft::testing
