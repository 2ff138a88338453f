#include "common/env_fault.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "common/check.h"

namespace weft {

/// A change of a directory that is not durable yet: `name` refers to `node`, or to nothing.
struct FaultEnv::Change {
  std::string name;
  NodePtr node;
};

struct FaultEnv::Node {
  bool is_dir = false;
  // File: what programs see, and what a power loss leaves.
  std::string bytes;
  std::string durable_bytes;
  // Directory: the same, and the changes between the two in order.
  std::map<std::string, NodePtr> entries;
  std::map<std::string, NodePtr> durable_entries;
  std::vector<Change> changes;
};

/// Where a name is or would be.
struct FaultEnv::Place {
  NodePtr dir;
  std::string name;
};

namespace {

std::vector<std::string> Parts(const std::string& path) {
  std::vector<std::string> parts;
  size_t begin = 0;
  while (begin < path.size()) {
    size_t end = std::min(path.find('/', begin), path.size());
    std::string part = path.substr(begin, end - begin);
    if (!part.empty() && part != ".") parts.push_back(std::move(part));
    begin = end + 1;
  }
  return parts;
}

class MemoryMappedFile : public MappedFile {
 public:
  explicit MemoryMappedFile(std::string bytes) : bytes_(std::move(bytes)) {}
  std::span<const std::byte> bytes() const override { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

}  // namespace

class FaultEnv::Writer : public WritableFile {
 public:
  Writer(FaultEnv& env, NodePtr node, std::string path)
      : env_(env), node_(std::move(node)), path_(std::move(path)), generation_(env.generation_) {}

  using WritableFile::Append;
  Status Append(std::span<const std::byte> bytes) override {
    std::lock_guard lock(env_.mutex_);
    if (generation_ != env_.generation_) return Dead();
    const char* text = reinterpret_cast<const char*>(bytes.data());
    if (Status status = env_.Operation("writing ", path_); !status.ok()) {
      node_->bytes.append(text, bytes.size() / 2);
      return status;
    }
    size_t fits = bytes.size();
    if (env_.capacity_) {
      uint64_t used = Bytes(env_.root_);
      uint64_t free = *env_.capacity_ > used ? *env_.capacity_ - used : 0;
      fits = std::min<uint64_t>(fits, free);
    }
    node_->bytes.append(text, fits);
    return fits == bytes.size() ? OkStatus() : ErrnoError("writing " + path_, ENOSPC);
  }

  Status Sync() override {
    std::lock_guard lock(env_.mutex_);
    if (generation_ != env_.generation_) return Dead();
    WEFT_RETURN_IF_ERROR(env_.Operation("syncing ", path_));
    node_->durable_bytes = node_->bytes;
    return OkStatus();
  }

  Status Close() override { return OkStatus(); }

 private:
  Status Dead() const { return AbortedError("writing " + path_ + ": opened before the crash"); }

  FaultEnv& env_;
  NodePtr node_;
  std::string path_;
  int64_t generation_;
};

FaultEnv::FaultEnv() : root_(std::make_shared<Node>()) {
  root_->is_dir = true;
}

FaultEnv::~FaultEnv() = default;

void FaultEnv::CrashNode(const NodePtr& node, PhiloxStream* torn) {
  if (!node->is_dir) {
    size_t kept = node->durable_bytes.size();
    if (torn != nullptr && node->bytes.size() > kept) {
      kept += torn->Below(node->bytes.size() - kept + 1);
      node->durable_bytes = node->bytes.substr(0, kept);
    }
    node->bytes = node->durable_bytes;
    return;
  }
  if (torn != nullptr) {
    uint64_t kept = torn->Below(node->changes.size() + 1);
    for (uint64_t i = 0; i < kept; ++i) {
      const Change& change = node->changes[i];
      if (change.node == nullptr) {
        node->durable_entries.erase(change.name);
      } else {
        node->durable_entries[change.name] = change.node;
      }
    }
  }
  node->changes.clear();
  node->entries = node->durable_entries;
  for (const auto& [name, child] : node->entries) CrashNode(child, torn);
}

void FaultEnv::SimulateCrash(Unsynced unsynced, uint64_t seed) {
  std::lock_guard lock(mutex_);
  PhiloxStream torn({seed, 0, SiteHash("env_fault")});
  CrashNode(root_, unsynced == Unsynced::kTorn ? &torn : nullptr);
  ++generation_;
  fail_at_.reset();
  crash_at_.reset();
  capacity_.reset();
}

void FaultEnv::SyncNode(const NodePtr& node) {
  node->durable_bytes = node->bytes;
  node->durable_entries = node->entries;
  node->changes.clear();
  for (const auto& [name, child] : node->entries) SyncNode(child);
}

void FaultEnv::SyncAll() {
  std::lock_guard lock(mutex_);
  SyncNode(root_);
}

int64_t FaultEnv::operations() const {
  std::lock_guard lock(mutex_);
  return operations_;
}

void FaultEnv::FailOperation(int64_t number, Status error) {
  std::lock_guard lock(mutex_);
  fail_at_ = number;
  fail_with_ = std::move(error);
}

void FaultEnv::CrashAtOperation(int64_t number) {
  std::lock_guard lock(mutex_);
  crash_at_ = number;
}

void FaultEnv::SetCapacity(uint64_t bytes) {
  std::lock_guard lock(mutex_);
  capacity_ = bytes;
}

void FaultEnv::FlipBits(const std::string& path, uint64_t offset, uint8_t mask) {
  std::lock_guard lock(mutex_);
  NodePtr node = Find(path);
  WEFT_CHECK(node != nullptr && offset < node->bytes.size(), "no such byte: " + path);
  node->bytes[offset] = static_cast<char>(node->bytes[offset] ^ mask);
  node->durable_bytes = node->bytes;
}

Status FaultEnv::Operation(std::string_view what, const std::string& path) {
  ++operations_;
  WEFT_RETURN_IF_ERROR(Alive(path));
  if (fail_at_ == operations_) return fail_with_.WithContext(std::string(what) + path);
  return OkStatus();
}

Status FaultEnv::Alive(const std::string& path) const {
  if (!crash_at_ || operations_ < *crash_at_) return OkStatus();
  return AbortedError(path + ": simulated crash");
}

FaultEnv::NodePtr FaultEnv::Find(const std::string& path) const {
  NodePtr node = root_;
  for (const std::string& part : Parts(path)) {
    auto it = node->entries.find(part);
    if (it == node->entries.end()) return nullptr;
    node = it->second;
  }
  return node;
}

Result<FaultEnv::NodePtr> FaultEnv::FindFile(const std::string& what,
                                             const std::string& path) const {
  WEFT_RETURN_IF_ERROR(Alive(path));
  NodePtr node = Find(path);
  if (node == nullptr) return ErrnoError(what + path, ENOENT);
  if (node->is_dir) return InvalidError(path + " is not a regular file");
  return node;
}

Result<FaultEnv::Place> FaultEnv::FindPlace(const std::string& what,
                                            const std::string& path) const {
  std::vector<std::string> parts = Parts(path);
  if (parts.empty()) return InvalidError(what + path + ": names no entry");
  NodePtr dir = root_;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    auto it = dir->entries.find(parts[i]);
    if (it == dir->entries.end()) return ErrnoError(what + path, ENOENT);
    dir = it->second;
    if (!dir->is_dir) return ErrnoError(what + path, ENOTDIR);
  }
  return Place{dir, parts.back()};
}

void FaultEnv::SetEntry(const NodePtr& dir, const std::string& name, NodePtr node) {
  dir->changes.push_back({name, node});
  if (node == nullptr) {
    dir->entries.erase(name);
  } else {
    dir->entries[name] = std::move(node);
  }
}

uint64_t FaultEnv::Bytes(const NodePtr& node) {
  uint64_t bytes = node->bytes.size();
  for (const auto& [name, child] : node->entries) bytes += Bytes(child);
  return bytes;
}

Result<std::unique_ptr<WritableFile>> FaultEnv::NewWritableFile(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Operation("creating ", path));
  WEFT_ASSIGN_OR_RETURN(Place place, FindPlace("creating ", path));
  NodePtr node;
  if (auto it = place.dir->entries.find(place.name); it != place.dir->entries.end()) {
    node = it->second;
    if (node->is_dir) return ErrnoError("creating " + path, EISDIR);
    node->bytes.clear();
    // A truncation may reach the disk at any time, so a crash loses the old bytes as well.
    node->durable_bytes.clear();
  } else {
    node = std::make_shared<Node>();
    SetEntry(place.dir, place.name, node);
  }
  return std::unique_ptr<WritableFile>(std::make_unique<Writer>(*this, node, path));
}

Result<std::unique_ptr<MappedFile>> FaultEnv::MapFile(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(NodePtr node, FindFile("opening ", path));
  return std::unique_ptr<MappedFile>(std::make_unique<MemoryMappedFile>(node->bytes));
}

Status FaultEnv::ReadAt(const std::string& path, uint64_t offset, std::span<std::byte> out) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(NodePtr node, FindFile("opening ", path));
  if (out.empty()) return OkStatus();
  if (offset > node->bytes.size() || node->bytes.size() - offset < out.size()) {
    return CorruptError(path + " ends at byte " + std::to_string(node->bytes.size()));
  }
  std::memcpy(out.data(), node->bytes.data() + offset, out.size());
  return OkStatus();
}

bool FaultEnv::FileExists(const std::string& path) {
  std::lock_guard lock(mutex_);
  return Alive(path).ok() && Find(path) != nullptr;
}

Result<uint64_t> FaultEnv::FileSize(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(NodePtr node, FindFile("reading the size of ", path));
  return node->bytes.size();
}

Result<std::vector<std::string>> FaultEnv::ListDir(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Alive(path));
  NodePtr node = Find(path);
  if (node == nullptr) return ErrnoError("listing " + path, ENOENT);
  if (!node->is_dir) return ErrnoError("listing " + path, ENOTDIR);
  std::vector<std::string> names;
  for (const auto& [name, child] : node->entries) names.push_back(name);
  return names;
}

Status FaultEnv::CreateDirs(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Operation("creating the directory ", path));
  NodePtr dir = root_;
  for (const std::string& part : Parts(path)) {
    auto it = dir->entries.find(part);
    NodePtr child;
    if (it != dir->entries.end()) {
      child = it->second;
      if (!child->is_dir) return ErrnoError("creating the directory " + path, ENOTDIR);
    } else {
      child = std::make_shared<Node>();
      child->is_dir = true;
      SetEntry(dir, part, child);
    }
    dir = child;
  }
  return OkStatus();
}

Status FaultEnv::Rename(const std::string& from, const std::string& to) {
  std::lock_guard lock(mutex_);
  std::string what = "renaming " + from + " to ";
  WEFT_RETURN_IF_ERROR(Operation(what, to));
  WEFT_ASSIGN_OR_RETURN(Place source, FindPlace(what, from));
  WEFT_ASSIGN_OR_RETURN(Place target, FindPlace(what, to));
  auto it = source.dir->entries.find(source.name);
  if (it == source.dir->entries.end()) return ErrnoError(what + to, ENOENT);
  NodePtr node = it->second;
  if (auto old = target.dir->entries.find(target.name); old != target.dir->entries.end()) {
    if (old->second == node) return OkStatus();
    if (old->second->is_dir != node->is_dir) {
      return ErrnoError(what + to, node->is_dir ? ENOTDIR : EISDIR);
    }
    if (!old->second->entries.empty()) return ErrnoError(what + to, ENOTEMPTY);
  }
  // The new name first: a file system may lose the whole rename, but never the renamed file.
  SetEntry(target.dir, target.name, node);
  SetEntry(source.dir, source.name, nullptr);
  return OkStatus();
}

Status FaultEnv::SyncDir(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Operation("syncing the directory ", path));
  NodePtr node = Find(path);
  if (node == nullptr) return ErrnoError("syncing the directory " + path, ENOENT);
  if (!node->is_dir) return ErrnoError("syncing the directory " + path, ENOTDIR);
  node->durable_entries = node->entries;
  node->changes.clear();
  return OkStatus();
}

Status FaultEnv::RemoveFile(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Operation("removing ", path));
  WEFT_ASSIGN_OR_RETURN(Place place, FindPlace("removing ", path));
  auto it = place.dir->entries.find(place.name);
  if (it == place.dir->entries.end()) return ErrnoError("removing " + path, ENOENT);
  if (it->second->is_dir) return ErrnoError("removing " + path, EISDIR);
  SetEntry(place.dir, place.name, nullptr);
  return OkStatus();
}

Status FaultEnv::RemoveTree(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Operation("removing ", path));
  if (Find(path) == nullptr) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(Place place, FindPlace("removing ", path));
  SetEntry(place.dir, place.name, nullptr);
  return OkStatus();
}

Result<uint64_t> FaultEnv::FreeBytes(const std::string& path) {
  std::lock_guard lock(mutex_);
  WEFT_RETURN_IF_ERROR(Alive(path));
  if (!capacity_) return uint64_t{1} << 50;
  uint64_t used = Bytes(root_);
  return *capacity_ > used ? *capacity_ - used : 0;
}

}  // namespace weft
