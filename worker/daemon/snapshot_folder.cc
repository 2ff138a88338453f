#include "worker/daemon/snapshot_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <span>
#include <vector>

#include "common/env.h"
#include "common/hash.h"
#include "common/log.h"

namespace weft::daemon {
namespace {

namespace fs = std::filesystem;

/// The last change anywhere in a tree of folders.
fs::file_time_type Newest(const fs::path& root) {
  std::error_code error;
  fs::file_time_type newest = fs::last_write_time(root, error);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root, error)) {
    newest = std::max(newest, fs::last_write_time(entry.path(), error));
  }
  return newest;
}

}  // namespace

std::string SnapshotFolder(const std::string& parent, const std::string& data_dir) {
  if (parent.empty()) return "";
  return JoinPath(parent, "weft-" + HashHex(std::as_bytes(std::span(data_dir))));
}

Status MakeSnapshotFolder(const std::string& folder) {
  struct stat found {};
  const bool made = mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST;
  if (made && lstat(folder.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
      found.st_uid == geteuid()) {
    return OkStatus();
  }
  return InvalidError("no folder of its own for snapshots at " + folder +
                      "; hint: --snapshot-dir of the worker names a folder in memory");
}

void ForgetOldSnapshots(const std::string& folder, const std::set<std::string>& running,
                        std::chrono::seconds age) {
  if (folder.empty()) return;
  std::error_code error;
  std::vector<fs::path> old;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (running.contains(name.substr(0, name.find('.')))) continue;
    if (fs::file_time_type::clock::now() - Newest(entry.path()) >= age) old.push_back(entry.path());
  }
  for (const fs::path& path : old) {
    WEFT_LOG_INFO << "deleting old snapshots: " << path.string();
    fs::remove_all(path, error);
  }
}

void LeaveSnapshotFolder(const std::string& folder) {
  if (!folder.empty()) (void)rmdir(folder.c_str());
}

}  // namespace weft::daemon
