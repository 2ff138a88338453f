#include "worker/daemon/data_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <random>
#include <utility>

#include "common/env.h"
#include "common/json.h"

namespace weft::daemon {
namespace {

constexpr size_t kMaxIdLength = 128;

/// Letters, digits, dot, dash and underscore: an id is part of file names and metric labels.
Status CheckId(const std::string& id) {
  bool legal = !id.empty() && id.size() <= kMaxIdLength &&
               std::all_of(id.begin(), id.end(), [](unsigned char c) {
                 return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
               });
  if (legal) return OkStatus();
  return InvalidError("worker id '" + id +
                      "' is not legal; hint: use 1 to 128 letters, digits, '.', '-' and '_'");
}

std::string NewId() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
  std::string id;
  for (const char* c = host.data(); *c != '\0' && *c != '.' && id.size() < 64; ++c) {
    auto byte = static_cast<unsigned char>(*c);
    id += std::isalnum(byte) != 0 ? static_cast<char>(std::tolower(byte)) : '-';
  }
  if (id.empty()) id = "worker";
  std::random_device random;
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  id += '-';
  for (int i = 0; i < 6; ++i) id += kDigits[random() % kDigits.size()];
  return id;
}

Result<std::string> ReadId(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, 1 << 16));
  Result<Json> json = ParseJson(text);
  if (!json.ok() || !json->is_object() || !json->contains("worker_id") ||
      !(*json)["worker_id"].is_string()) {
    return CorruptError(path + " does not hold a worker id; hint: delete it for a new one");
  }
  return (*json)["worker_id"].get<std::string>();
}

}  // namespace

Result<DataDir> DataDir::Open(const std::string& path, const std::string& worker_id) {
  Env& env = Env::Posix();
  WEFT_RETURN_IF_ERROR(env.CreateDirs(path));
  std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  if (real == nullptr) return ErrnoError("resolve the data folder " + path, errno);
  std::string lock_path = JoinPath(real.get(), "lock");
  int fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoError("open " + lock_path, errno);
  DataDir dir(real.get(), fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError("lock " + lock_path, errno);
    return ConflictError("data folder " + dir.path_ +
                         " is in use by another weft-worker; hint: give each worker its own "
                         "--data-dir");
  }
  std::string id_path = JoinPath(dir.path_, "worker.json");
  std::string stored;
  if (env.FileExists(id_path)) {
    WEFT_ASSIGN_OR_RETURN(stored, ReadId(env, id_path));
  }
  dir.worker_id_ = !worker_id.empty() ? worker_id : !stored.empty() ? stored : NewId();
  WEFT_RETURN_IF_ERROR(CheckId(dir.worker_id_));
  if (dir.worker_id_ != stored) {
    Json json{{"worker_id", dir.worker_id_}};
    WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, id_path, json.dump(2) + "\n"));
  }
  for (const std::string& folder : {dir.LogDir(), dir.SpecDir()}) {
    WEFT_RETURN_IF_ERROR(env.RemoveTree(folder));
    WEFT_RETURN_IF_ERROR(env.CreateDirs(folder));
  }
  WEFT_RETURN_IF_ERROR(env.CreateDirs(dir.CacheDir()));
  return dir;
}

DataDir::~DataDir() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

DataDir::DataDir(DataDir&& other) noexcept
    : path_(std::move(other.path_)),
      worker_id_(std::move(other.worker_id_)),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

}  // namespace weft::daemon
