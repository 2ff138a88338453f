#pragma once

#include <array>
#include <string_view>

namespace weft {

/// While it lives, the name of the calling thread says what it waits for: "@all-reduce". So it can
/// be seen from outside, also of a process that is stopped: by ps and top, and by the worker, which
/// tells ranks that wait for their peers from the one that they wait for.
class WaitName {
 public:
  /// As many characters of `what` are shown (prctl(2), PR_SET_NAME).
  static constexpr size_t kMostCharacters = 14;

  explicit WaitName(std::string_view what);
  ~WaitName();
  WaitName(const WaitName&) = delete;
  WaitName& operator=(const WaitName&) = delete;

 private:
  std::array<char, 16> before_ = {};
};

/// What a thread of this name waits for; empty: nothing that it names.
std::string_view WaitOf(std::string_view thread_name);

}  // namespace weft
