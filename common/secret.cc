#include "common/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/check.h"
#include "common/env.h"

namespace weft {
namespace {

constexpr uint64_t kLargestSecretFile = 1 << 20;

Status WriteAll(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t wrote = write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoError("write " + path, errno);
    text.remove_prefix(static_cast<size_t>(wrote));
  }
  return fsync(fd) == 0 ? OkStatus() : ErrnoError("sync " + path, errno);
}

}  // namespace

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  size_t filled = 0;
  while (filled < count) {
    const ssize_t got = getrandom(bytes.data() + filled, count - filled, 0);
    WEFT_CHECK(got > 0 || errno == EINTR, "the kernel gives no random bytes");
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return bytes;
}

std::string HexOf(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  hex.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    const auto value = static_cast<unsigned char>(byte);
    hex += kDigits[value >> 4];
    hex += kDigits[value & 15];
  }
  return hex;
}

bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

Status WriteSecretFile(const std::string& path, std::string_view text) {
  const std::string temporary = path + ".tmp." + std::to_string(getpid());
  (void)unlink(temporary.c_str());
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return ErrnoError("create " + temporary, errno);
  Status status = WriteAll(fd, text, temporary);
  (void)close(fd);
  if (status.ok()) status = Env::Posix().Rename(temporary, path);
  if (!status.ok()) {
    (void)unlink(temporary.c_str());
    return status;
  }
  return Env::Posix().SyncDir(DirName(path));
}

Result<std::string> ReadSecretFile(const std::string& path) {
  struct stat state {};
  if (stat(path.c_str(), &state) != 0) return ErrnoError("read " + path, errno);
  // As ssh has it: a file of another user, such as one that Kubernetes mounts, has its own rules.
  if (state.st_uid == geteuid() && (state.st_mode & 077) != 0) {
    return InvalidError("others may read or change " + path +
                        ", which holds a secret; hint: chmod 600 " + path);
  }
  return ReadFile(Env::Posix(), path, kLargestSecretFile);
}

}  // namespace weft
