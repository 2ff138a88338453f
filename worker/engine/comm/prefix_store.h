#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

#include "worker/engine/comm/store.h"

namespace weft::engine {

/// The keys of a Store that begin with a prefix, as a Store of their own: for ranks that meet in it
/// more than once.
class PrefixStore : public Store {
 public:
  /// `store` outlives this.
  PrefixStore(Store* store, std::string prefix) : store_(store), prefix_(std::move(prefix)) {}

  Status Set(const std::string& key, std::string_view value) override {
    return store_->Set(prefix_ + key, value);
  }
  Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_->Get(prefix_ + key, timeout);
  }

 private:
  Store* store_;
  std::string prefix_;
};

}  // namespace weft::engine
