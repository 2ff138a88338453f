#include "kernels/cpu/wait_policy.h"

#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace weft::kernels::cpu {

void BoundSpinning() {
  constexpr char kOwn[] = "GOMP_SPINCOUNT";
  if (std::getenv(kOwn) != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string line{std::istreambuf_iterator<char>(file), {}};
  std::vector<char*> arguments;
  for (size_t at = 0; at < line.size(); at = line.find('\0', at) + 1) {
    arguments.push_back(line.data() + at);
  }
  if (arguments.empty() || line.back() != '\0') return;
  arguments.push_back(nullptr);
  // Set even if what follows fails: then it is not tried again, and children still have it.
  if (setenv(kOwn, kSpinCount, 1) != 0) return;
  execv("/proc/self/exe", arguments.data());
}

}  // namespace weft::kernels::cpu
