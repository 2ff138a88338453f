#include "common/wait_name.h"

#include <sys/prctl.h>

#include <algorithm>

namespace weft {
namespace {

constexpr char kMark = '@';

}  // namespace

WaitName::WaitName(std::string_view what) {
  prctl(PR_GET_NAME, before_.data());
  std::array<char, kMostCharacters + 2> name = {kMark};
  std::copy_n(what.begin(), std::min(what.size(), kMostCharacters), name.begin() + 1);
  prctl(PR_SET_NAME, name.data());
}

WaitName::~WaitName() {
  prctl(PR_SET_NAME, before_.data());
}

std::string_view WaitOf(std::string_view thread_name) {
  return thread_name.starts_with(kMark) ? thread_name.substr(1) : std::string_view();
}

}  // namespace weft
