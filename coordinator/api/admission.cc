#include "coordinator/api/admission.h"

#include <algorithm>
#include <utility>

#include "common/http/address.h"
#include "proto/grpc_status.h"
#include "proto/grpc_tls.h"

namespace weft::coordinator {
namespace {

/// What one machine may do before it has to wait: a guess at a token is as good as none.
constexpr double kFailuresPerSecond = 5;
constexpr double kFailuresAtOnce = 50;
constexpr double kRecordsPerSecond = 5;
constexpr double kRecordsAtOnce = 100;

/// The token that a call carries; empty: none.
std::string TokenOf(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(kTokenMetadata);
  if (found == metadata.end()) return "";
  const std::string value(found->second.data(), found->second.size());
  return value.starts_with(kTokenScheme) ? value.substr(kTokenScheme.size()) : "";
}

Status Deny(const Person& person, const std::string& what) {
  return DeniedError("'" + person.name + "' is " + std::string(Name(person.role)) + " and " + what +
                     "; hint: `weft auth whoami` shows your rights");
}

bool HasQueue(const Person& person, const std::string& queue) {
  const std::vector<std::string>& queues = person.queues;
  return queues.empty() || std::find(queues.begin(), queues.end(), queue) != queues.end();
}

}  // namespace

std::string HostOf(const std::string& peer) {
  const size_t begin = peer.find(':'), end = peer.rfind(':');
  if (begin == std::string::npos || end <= begin) return peer;
  std::string host = peer.substr(begin + 1, end - begin - 1);
  // gRPC writes "ipv6:%5B::1%5D:51022".
  if (host.starts_with("%5B") && host.ends_with("%5D")) host = host.substr(3, host.size() - 6);
  return host;
}

Admission::Admission(AccessRules rules, Service& service, const Clock& clock)
    : rules_(std::move(rules)),
      service_(service),
      calls_(clock, rules_.calls_per_second, rules_.calls_at_once),
      failures_(clock, kFailuresPerSecond, kFailuresAtOnce),
      records_(clock, kRecordsPerSecond, kRecordsAtOnce) {}

grpc::Status Admission::Identify(const grpc::CallbackServerContext& context, Caller& caller) {
  caller.peer = context.peer();
  const std::string token = TokenOf(context);
  const std::string holder = tls::NameIn(PeerUris(context), "client");
  if (rules_.revoked != nullptr && IsRevoked(PeerSerial(context))) {
    caller.person.name = holder;
    return {grpc::StatusCode::UNAUTHENTICATED,
            "the certificate that is shown was revoked; hint: ask for a new one"};
  }
  if (rules_.people == nullptr) {
    if (!rules_.tls || !holder.empty()) {
      caller.person = {holder, Role::kAdmin, {}};
      return grpc::Status::OK;
    }
    return {grpc::StatusCode::UNAUTHENTICATED,
            "this coordinator wants the certificate of a person; hint: --tls-cert with a file of "
            "`weft certs issue DIR client NAME`"};
  }
  std::optional<Person> person;
  if (!token.empty()) {
    person = rules_.people->WithToken(token);
  } else if (!holder.empty()) {
    person = rules_.people->WithName(holder);
  }
  if (person) {
    caller.person = *person;
    return grpc::Status::OK;
  }
  if (!token.empty()) {
    return {grpc::StatusCode::UNAUTHENTICATED,
            "the coordinator does not know this token; hint: `weft auth token NAME` makes one for "
            "its file of people"};
  }
  caller.person.name = holder;
  return {grpc::StatusCode::UNAUTHENTICATED,
          holder.empty() ? "the coordinator wants to know who calls; hint: --token-file, or a "
                           "certificate with --tls-cert"
                         : "'" + holder + "' is not among the people of the coordinator"};
}

grpc::Status Admission::CheckRate(const Caller& caller) {
  const std::string host = HostOf(caller.peer);
  // Whoever is on this machine and has no name is `weft up`'s user.
  if (caller.person.name.empty() && http::IsLoopback(host)) return grpc::Status::OK;
  if (calls_.Take(caller.person.name.empty() ? host : "person " + caller.person.name)) {
    return grpc::Status::OK;
  }
  return {grpc::StatusCode::RESOURCE_EXHAUSTED,
          "more than " + std::to_string(static_cast<int64_t>(rules_.calls_per_second)) +
              " calls per second; hint: wait, or follow a job with `weft job wait` instead of "
              "asking for it again and again"};
}

Status Admission::CheckJob(const Verb& verb, const std::string& job_id, const Person& person) {
  const bool may_others = May(person.role, verb, /*own=*/false);
  if (may_others && person.queues.empty()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const std::string owner, service_.store().OwnerOf(job_id));
  if (owner == person.name) return OkStatus();
  const std::string job =
      "job " + job_id + " is of " + (owner.empty() ? "nobody" : "'" + owner + "'");
  if (!may_others) return Deny(person, job);
  WEFT_ASSIGN_OR_RETURN(const std::string queue, service_.store().QueueOf(job_id));
  if (HasQueue(person, queue)) return OkStatus();
  return Deny(person, job + " and in queue '" + queue + "', which is none of yours");
}

Status Admission::CheckRights(const Verb& verb, CallSubject& subject, const Person& person) {
  if (!May(person.role, verb, /*own=*/true)) {
    return Deny(person, "must not call " + std::string(verb.method));
  }
  if (subject.names_job) {
    WEFT_ASSIGN_OR_RETURN(subject.job_id, service_.ResolveId(subject.job_id));
    subject.object = subject.job_id;
    WEFT_RETURN_IF_ERROR(CheckJob(verb, subject.job_id, person));
  }
  if (!subject.queue.empty() && !HasQueue(person, subject.queue)) {
    return Deny(person, "must not put jobs in queue '" + subject.queue + "'");
  }
  // Who asks again has that job already.
  if (!subject.client_request_id.empty() && !person.name.empty() &&
      !service_.store().JobOfRequest(person.name, subject.client_request_id).ok()) {
    WEFT_ASSIGN_OR_RETURN(const int64_t jobs, service_.store().CountUnfinishedJobs(person.name));
    if (jobs >= rules_.jobs_per_person) {
      return ExhaustedError("'" + person.name + "' has " + std::to_string(jobs) +
                            " jobs that have not ended, as many as one may; hint: wait for some, "
                            "or cancel them");
    }
  }
  return OkStatus();
}

grpc::Status Admission::Admit(const grpc::CallbackServerContext& context, const Verb& verb,
                              CallSubject& subject, Caller& caller) {
  grpc::Status status = Identify(context, caller);
  if (!status.ok()) {
    if (failures_.Take(HostOf(caller.peer))) return status;
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            "too many calls of unknown callers from this machine; hint: wait a little"};
  }
  status = CheckRate(caller);
  if (status.ok()) status = ToGrpcStatus(CheckRights(verb, subject, caller.person));
  if (!status.ok()) return status;
  if (verb.changes && rules_.needs_deadlines &&
      context.deadline() == std::chrono::system_clock::time_point::max()) {
    return {grpc::StatusCode::INVALID_ARGUMENT,
            std::string(verb.method) + " changes something and needs a deadline"};
  }
  return grpc::Status::OK;
}

bool Admission::IsRevoked(const std::string& serial) const {
  return rules_.revoked != nullptr && !serial.empty() && rules_.revoked->Contains(serial);
}

bool Admission::Records(const Caller& caller) {
  return records_.Take(HostOf(caller.peer));
}

}  // namespace weft::coordinator
