#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <random>
#include <string>

namespace weft::coordinator {

/// Ids of new jobs: the name and five characters that are hard to mistake for each other.
/// Thread-safe.
class JobIds {
 public:
  /// nullopt: by the randomness of the machine.
  explicit JobIds(std::optional<uint64_t> seed) : random_(seed ? *seed : std::random_device{}()) {}

  std::string Next(const std::string& name);

 private:
  std::mutex mutex_;
  std::mt19937_64 random_;
};

}  // namespace weft::coordinator
