// Finds the combinations that the matrix trains, and writes them to a file.
#include <cstdio>

#include "tests/matrix/combinations.h"
#include "tests/matrix/covering_set_file.h"

int main(int argc, char** argv) {
  constexpr size_t kLeast = 70;  // combinations
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FILE\n", argv[0]);
    return 2;
  }
  if (weft::testing::WriteCombinations(argv[1], weft::testing::CoveringSet(kLeast))) return 0;
  std::fprintf(stderr, "cannot write %s\n", argv[1]);
  return 1;
}
