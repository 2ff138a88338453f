#pragma once

#include <set>
#include <string>
#include <vector>

#include "common/status.h"

namespace weft::tls {

/// Whom a certificate is for.
struct Holder {
  std::string kind;                ///< "server", "worker" or "client".
  std::string name;                ///< Of the worker or person; of a server its first host.
  std::vector<std::string> hosts;  ///< Names and addresses by which a server is reached.
};

/// How long certificates are good for.
struct Validity {
  int64_t authority_days = 3650;
  int64_t days = 365;
};

/// The certificate authority of one cluster, in a folder:
///   ca.pem          whom to trust: one CA, two while they rotate; for everybody
///   ca-key.pem      certificate and key of the CA that signs; stays where it is
///   ca-crl.pem      which certificates are revoked: a certificate revocation list, signed by that
///   CA ca-issued.jsonl each certificate that was issued, oldest first server.pem, worker-ID.pem,
///   client-NAME.pem
///                   certificate and key of one holder, in one file, so that they change together
/// Files with a key have mode 0600. Keys are of the curve P-256.
class CertificateAuthority {
 public:
  explicit CertificateAuthority(std::string folder, Validity validity = {})
      : folder_(std::move(folder)), validity_(validity) {}

  /// Makes the folder and a CA. kConflict when there is one.
  Status Init() const;

  /// Makes, or renews, a certificate; the path of its file.
  Result<std::string> Issue(const Holder& holder) const;

  /// Puts all certificates that the worker or person has so far on the revocation list, and deletes
  /// their file here. The path of the list. kNotFound when there is none that is still good.
  Result<std::string> Revoke(const Holder& holder) const;

  // A CA is replaced in three steps, between which the files reach all machines.
  /// Makes a new CA, which is trusted besides the one that signs.
  Status AddAuthority() const;
  /// Has the newest CA sign, and issues all certificates of the folder again, and the revocation
  /// list; the files that changed.
  Result<std::vector<std::string>> SwitchAuthority() const;
  /// Trusts the CA that signs alone.
  Status DropOldAuthority() const;

 private:
  std::string Path(const std::string& name) const;
  /// Serial numbers of the certificates issued to the holder that have not ended.
  Result<std::set<std::string>> SerialsOf(const Holder& holder) const;
  /// Signs a list of these, and of what is on the list already.
  Status WriteRevoked(std::set<std::string> serials) const;

  std::string folder_;
  Validity validity_;
};

}  // namespace weft::tls
