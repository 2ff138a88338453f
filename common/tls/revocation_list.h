#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "common/clock.h"
#include "common/file_version.h"
#include "common/status.h"

namespace weft::tls {

/// Serials of revoked certificates, as Certificate::serial, in the text of a certificate revocation
/// list (CRL, RFC 5280) in PEM form. kInvalid when it is none, or signed by none of `authorities`
/// (PEM).
Result<std::set<std::string>> ReadRevokedSerials(const std::string& pem,
                                                 const std::string& authorities);

/// The revocation list in a file, which is read again when it has changed. A change that makes no
/// sense is logged and the list before it stays. Thread-safe.
class RevocationList {
 public:
  /// Reads the list in `path`, of one of the authorities in the file `authorities`. kInvalid or
  /// kNotFound says what is wrong with it.
  static Result<std::unique_ptr<RevocationList>> Open(const std::string& path,
                                                      const std::string& authorities,
                                                      const Clock& clock);

  bool Contains(const std::string& serial);

 private:
  RevocationList(std::string path, std::string authorities, const Clock& clock)
      : path_(std::move(path)), authorities_(std::move(authorities)), clock_(clock) {}
  Result<std::set<std::string>> Read() const;
  /// Needs mutex_.
  void ReadAgainIfChanged();

  const std::string path_;
  const std::string authorities_;
  const Clock& clock_;
  std::mutex mutex_;
  std::set<std::string> serials_;
  FileVersion version_;
  std::chrono::nanoseconds looked_at_{0};
};

}  // namespace weft::tls
