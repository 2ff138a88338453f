#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace weft::coordinator {

/// One thing that a caller did, or tried; mirrors weft.v1.AuditRecord.
struct AuditRecord {
  int64_t sequence = 0;  ///< From 1 without gaps; given by the store, as the hash.
  double time = 0;       ///< Seconds since 1970 UTC.
  std::string who;       ///< Empty: nobody is known.
  std::string role;
  std::string peer;
  std::string method;
  std::string object;
  std::string result;  ///< "OK", or the code of the refusal.
  std::string hash;    ///< AuditHash of this record and of the hash before.

  bool operator==(const AuditRecord&) const = default;
};

/// SHA-256 over the record, without its hash, and the hash of the one before it ("" for the first),
/// as 64 hexadecimal digits. Who changes a record or takes one away has to change all after it.
std::string AuditHash(const AuditRecord& record, const std::string& hash_before);

/// A call that changes something. Its record is stored with the change, in one transaction, or by
/// itself where nothing changed.
struct CallRecord {
  AuditRecord record;
  std::atomic<bool> stored = false;
};

struct AuditQuery {
  int64_t after_sequence = 0;
  std::string who;     ///< Empty: of all.
  std::string object;  ///< Empty: all.
  int64_t limit = 1000;
};

}  // namespace weft::coordinator
