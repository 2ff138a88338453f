#pragma once

#include <string>
#include <vector>

namespace weft::testing {

/// All failpoints of the code that begin with `prefix`, in order, as the sources have them: a new
/// one is in every test of them. Those of a job's move to a state are there for each state.
std::vector<std::string> FailpointsOf(const std::string& prefix);

inline std::vector<std::string> CoordinatorFailpoints() {
  return FailpointsOf("coordinator.");
}

}  // namespace weft::testing
