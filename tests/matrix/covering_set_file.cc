#include "tests/matrix/covering_set_file.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "common/check.h"

namespace weft::testing {

bool WriteCombinations(const std::string& path, const std::vector<Combination>& combinations) {
  std::ofstream file(path);
  for (const Combination& combination : combinations) {
    for (const size_t choice : combination) file << choice << ' ';
    file << '\n';
  }
  return static_cast<bool>(file.flush());
}

std::vector<Combination> ReadCombinations(const std::string& path) {
  std::vector<Combination> combinations;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Combination combination;
    std::istringstream choices(line);
    for (size_t choice = 0; choices >> choice;) combination.push_back(choice);
    bool known = combination.size() == Axes().size();
    for (size_t axis = 0; known && axis < combination.size(); ++axis) {
      known = combination[axis] < Axes()[axis].size();
    }
    WEFT_CHECK(known, "of other axes, or cut off; build it again: " + path);
    combinations.push_back(std::move(combination));
  }
  WEFT_CHECK(!combinations.empty(), "no combinations; build it again: " + path);
  return combinations;
}

}  // namespace weft::testing
