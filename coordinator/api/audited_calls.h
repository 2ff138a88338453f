#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "coordinator/service/metrics.h"
#include "coordinator/store/store.h"

namespace weft::coordinator {

/// The calls under way that change something. Each is answered only once its record is in the audit
/// log: with the change, or by itself where nothing changed. Thread-safe.
class AuditedCalls {
 public:
  AuditedCalls(coordinator::Store& store, Metrics& metrics) : store_(store), metrics_(metrics) {}

  /// `reactor`: the default one of `context`. `call` null: it changes nothing.
  void Begin(grpc::CallbackServerContext* context, grpc::ServerUnaryReactor* reactor,
             std::shared_ptr<CallRecord> call);

  /// The default reactor of a call, which gRPC makes once: that of Begin, for the one that handles
  /// the call and asks for it once, or a new one.
  grpc::ServerUnaryReactor* ReactorOf(grpc::CallbackServerContext* context);

  /// The record that was begun; null for a call that changes nothing.
  std::shared_ptr<CallRecord> Of(grpc::ServerUnaryReactor* reactor);

  /// Ends the call with this status, recorded as its result; with the error of the store where that
  /// record is lost. A change is then not made: it was to be stored with its record.
  void Answer(grpc::ServerUnaryReactor* reactor, const grpc::Status& status);

  /// Stores a record by itself, then calls `then` with whether that succeeded; a failure is logged.
  void Store(std::shared_ptr<CallRecord> call, std::function<void(const Status&)> then);

 private:
  coordinator::Store& store_;
  Metrics& metrics_;
  std::mutex mutex_;
  std::map<grpc::CallbackServerContext*, grpc::ServerUnaryReactor*> begun_;
  std::map<grpc::ServerUnaryReactor*, std::shared_ptr<CallRecord>> calls_;
};

/// "PERMISSION_DENIED"; the name of a code of gRPC, "OK" included.
std::string NameOf(grpc::StatusCode code);

}  // namespace weft::coordinator
