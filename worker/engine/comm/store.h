#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "common/status.h"

namespace weft::engine {

/// Where the ranks of one attempt find each other: a small key-value store, empty at the start of
/// the attempt and shared by its ranks. Values are bytes. Thread-safe.
class Store {
 public:
  virtual ~Store() = default;

  virtual Status Set(const std::string& key, std::string_view value) = 0;

  /// Waits until the key is set. kUnavailable when it is not within `timeout`, or when the store
  /// is gone.
  virtual Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

}  // namespace weft::engine
