#include "coordinator/service/job_ids.h"

#include <string_view>

namespace weft::coordinator {

std::string JobIds::Next(const std::string& name) {
  constexpr std::string_view kAlphabet = "23456789abcdefghjkmnpqrstuvwxyz";
  constexpr int kLength = 5;
  std::string id = name + "-";
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < kLength; ++i) id += kAlphabet[random_() % kAlphabet.size()];
  return id;
}

}  // namespace weft::coordinator
