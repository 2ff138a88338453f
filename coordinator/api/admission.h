#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/tls/revocation_list.h"
#include "coordinator/access/people.h"
#include "coordinator/access/rate_limit.h"
#include "coordinator/access/role.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {

/// Who may call, and how often.
struct AccessRules {
  std::shared_ptr<People> people;  ///< Null: whoever reaches the server may do everything.
  std::shared_ptr<tls::RevocationList> revoked;  ///< Null: no certificate is.
  bool tls = false;               ///< Then only with a certificate of the CA, or a token.
  double calls_per_second = 200;  ///< Of each person, or of each other machine.
  double calls_at_once = 1000;
  int64_t jobs_per_person = 1000;  ///< That have not ended.
  bool needs_deadlines = true;     ///< Calls that change something must say how long they may take.
};

/// Who makes a call.
struct Caller {
  Person person;
  std::string peer;  ///< "ipv4:10.0.0.7:51022"
};

/// What a call is about, as far as rights depend on it.
struct CallSubject {
  bool names_job = false;
  std::string job_id;             ///< Or a prefix of one, if it names a job.
  std::string queue;              ///< That a job is to be put in; empty: none.
  std::string client_request_id;  ///< Of a job that is submitted; empty: none is.
  std::string object;             ///< For the audit log.
};

/// Decides whether a call is let in. Thread-safe.
class Admission {
 public:
  Admission(AccessRules rules, Service& service, const Clock& clock);

  /// OK, or why not: UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED, INVALID_ARGUMENT, or
  /// NOT_FOUND of a job. Fills in the caller as far as it is known, and the full id of the job, by
  /// which the call must be handled: rights were checked for that job alone.
  grpc::Status Admit(const grpc::CallbackServerContext& context, const Verb& verb,
                     CallSubject& subject, Caller& caller);

  /// Whether the certificate of that serial (PeerSerial) is revoked by now.
  bool IsRevoked(const std::string& serial) const;

  /// Whether a refusal of this caller is still to be written into the audit log: of many in a short
  /// time only the first are.
  bool Records(const Caller& caller);

 private:
  grpc::Status Identify(const grpc::CallbackServerContext& context, Caller& caller);
  grpc::Status CheckRate(const Caller& caller);
  Status CheckRights(const Verb& verb, CallSubject& subject, const Person& person);
  /// Whether the person may make the call about this job: its own, or one of its queues.
  Status CheckJob(const Verb& verb, const std::string& job_id, const Person& person);

  const AccessRules rules_;
  Service& service_;
  RateLimit calls_;
  RateLimit failures_;  ///< To show who one is.
  RateLimit records_;
};

/// "10.0.0.7" of "ipv4:10.0.0.7:51022".
std::string HostOf(const std::string& peer);

}  // namespace weft::coordinator
