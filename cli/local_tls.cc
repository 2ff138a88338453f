#include "cli/local_tls.h"

#include <utility>

#include "common/clock.h"
#include "common/env.h"
#include "common/tls/certificate_authority.h"

namespace weft::cli {
namespace {

constexpr double kRenewBeforeSeconds = 30 * 86400;
/// The only person that these certificates name.
constexpr const char* kUser = "admin";

}  // namespace

Status LocalTls::Prepare(const std::string& host, const std::vector<std::string>& workers) const {
  const tls::CertificateAuthority authority(folder_);
  if (!Env::Posix().FileExists(JoinPath(folder_, "ca-key.pem"))) {
    WEFT_RETURN_IF_ERROR(authority.Init());
  }
  tls::Holder server{"server", "localhost", {"localhost", "127.0.0.1", "::1"}};
  if (!host.empty()) server.hosts.push_back(host);
  // Its host may be another one this time.
  WEFT_RETURN_IF_ERROR(authority.Issue(server).status());
  std::vector<tls::Holder> holders = {{"client", kUser, {}}};
  for (const std::string& worker : workers) holders.push_back({"worker", worker, {}});
  for (const tls::Holder& holder : holders) {
    const Result<double> end =
        tls::CertificateEnd(JoinPath(folder_, holder.kind + "-" + holder.name + ".pem"));
    if (end.ok() && *end - Clock::System().UnixSeconds() > kRenewBeforeSeconds) continue;
    WEFT_RETURN_IF_ERROR(authority.Issue(holder).status());
  }
  return OkStatus();
}

std::vector<std::string> LocalTls::OptionsFor(const std::string& certificate) const {
  return {"--tls-cert", JoinPath(folder_, certificate), "--tls-ca", JoinPath(folder_, "ca.pem")};
}

std::vector<std::string> LocalTls::CoordinatorOptions() const {
  std::vector<std::string> options = OptionsFor("server.pem");
  options.insert(options.end(), {"--tls-crl", JoinPath(folder_, "ca-crl.pem")});
  return options;
}

std::vector<std::string> LocalTls::WorkerOptions(const std::string& worker) const {
  return OptionsFor("worker-" + worker + ".pem");
}

tls::Files LocalTls::Files() const {
  return {JoinPath(folder_, std::string("client-") + kUser + ".pem"), "",
          JoinPath(folder_, "ca.pem")};
}

}  // namespace weft::cli
