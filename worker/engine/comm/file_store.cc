#include "worker/engine/comm/file_store.h"

#include <thread>

#include "common/hash.h"

namespace weft::engine {

Status FileStore::Set(const std::string& key, std::string_view value) {
  WEFT_RETURN_IF_ERROR(env_.CreateDirs(folder_));
  return WriteFileAtomic(env_, Path(key), value);
}

Result<std::string> FileStore::Get(const std::string& key, std::chrono::milliseconds timeout) {
  constexpr auto kPollInterval = std::chrono::milliseconds(5);
  const std::string path = Path(key);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!env_.FileExists(path)) {
    if (std::chrono::steady_clock::now() >= deadline) {
      return UnavailableError("rendezvous key '" + key + "' was not set in " + folder_ +
                              " within " + std::to_string(timeout.count()) + " ms");
    }
    std::this_thread::sleep_for(kPollInterval);
  }
  return ReadFile(env_, path);
}

std::string FileStore::Path(const std::string& key) const {
  // Keys may hold slashes and be long; the hash is a safe file name.
  return JoinPath(folder_, HashHex(std::as_bytes(std::span(key))));
}

}  // namespace weft::engine
