#include "common/tls/revocation_list.h"

#include <utility>

#include "common/env.h"
#include "common/log.h"
#include "common/tls/openssl_types.h"

namespace weft::tls {
namespace {

constexpr uint64_t kLargestFile = 64 << 20;
/// Between looks at the file.
constexpr std::chrono::milliseconds kLookEvery(500);

bool IsSignedByOneOf(X509_CRL* list, const std::string& authorities) {
  const Bio bio = ReaderOf(authorities);
  bool good = false;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    const X509Certificate authority(next);
    good = good || X509_CRL_verify(list, X509_get0_pubkey(authority.get())) == 1;
  }
  ERR_clear_error();
  return good;
}

}  // namespace

Result<std::set<std::string>> ReadRevokedSerials(const std::string& pem,
                                                 const std::string& authorities) {
  const Bio bio = ReaderOf(pem);
  const X509RevocationList list(PEM_read_bio_X509_CRL(bio.get(), nullptr, nullptr, nullptr));
  if (list == nullptr) return OpensslError("there is no certificate revocation list in PEM form");
  if (!IsSignedByOneOf(list.get(), authorities)) {
    return InvalidError(
        "no CA that is trusted has signed the certificate revocation list; hint: `weft certs "
        "revoke` writes it, and --tls-ca names the CA");
  }
  std::set<std::string> serials;
  STACK_OF(X509_REVOKED)* entries = X509_CRL_get_REVOKED(list.get());
  for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
    serials.insert(SerialText(X509_REVOKED_get0_serialNumber(sk_X509_REVOKED_value(entries, i))));
  }
  return serials;
}

Result<std::unique_ptr<RevocationList>> RevocationList::Open(const std::string& path,
                                                             const std::string& authorities,
                                                             const Clock& clock) {
  std::unique_ptr<RevocationList> list(new RevocationList(path, authorities, clock));
  list->version_ = FileVersion::Of(path);
  list->looked_at_ = clock.Monotonic();
  WEFT_ASSIGN_OR_RETURN(list->serials_, list->Read());
  return list;
}

Result<std::set<std::string>> RevocationList::Read() const {
  WEFT_ASSIGN_OR_RETURN(const std::string pem, ReadFile(Env::Posix(), path_, kLargestFile));
  WEFT_ASSIGN_OR_RETURN(const std::string trusted,
                        ReadFile(Env::Posix(), authorities_, kLargestFile));
  Result<std::set<std::string>> serials = ReadRevokedSerials(pem, trusted);
  if (!serials.ok()) return serials.status().WithContext(path_);
  return serials;
}

void RevocationList::ReadAgainIfChanged() {
  const std::chrono::nanoseconds now = clock_.Monotonic();
  if (now - looked_at_ < kLookEvery) return;
  looked_at_ = now;
  const FileVersion version = FileVersion::Of(path_);
  if (version == version_) return;
  version_ = version;
  Result<std::set<std::string>> read = Read();
  if (!read.ok()) {
    WEFT_LOG_ERROR << "the certificates that were revoked before stay so: "
                   << read.status().message();
    return;
  }
  serials_ = *std::move(read);
  WEFT_LOG_INFO << path_ << " has changed: " << serials_.size() << " certificates are revoked";
}

bool RevocationList::Contains(const std::string& serial) {
  std::lock_guard lock(mutex_);
  ReadAgainIfChanged();
  return serials_.contains(serial);
}

}  // namespace weft::tls
