#include "worker/engine/comm/hash_store.h"

namespace weft::engine {

Status HashStore::Set(const std::string& key, std::string_view value) {
  {
    std::lock_guard lock(mutex_);
    values_[key] = value;
  }
  changed_.notify_all();
  return OkStatus();
}

Result<std::string> HashStore::Get(const std::string& key, std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, timeout, [&] { return values_.count(key) > 0; })) {
    return UnavailableError("rendezvous key '" + key + "' was not set within " +
                            std::to_string(timeout.count()) + " ms");
  }
  return values_[key];
}

}  // namespace weft::engine
