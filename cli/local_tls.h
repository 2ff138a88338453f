#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "common/tls/certificate.h"

namespace weft::cli {

/// Certificates of the daemons that `weft up --tls` starts and of its user, in a folder with a CA
/// of their own (tls::CertificateAuthority).
class LocalTls {
 public:
  explicit LocalTls(std::string folder) : folder_(std::move(folder)) {}

  /// Makes what is missing, or ends within a month: for a coordinator that listens on `host`, for
  /// these workers, and for the user.
  Status Prepare(const std::string& host, const std::vector<std::string>& workers) const;

  std::vector<std::string> CoordinatorOptions() const;
  std::vector<std::string> WorkerOptions(const std::string& worker) const;
  /// What the user shows.
  tls::Files Files() const;

 private:
  std::vector<std::string> OptionsFor(const std::string& certificate) const;

  std::string folder_;
};

}  // namespace weft::cli
