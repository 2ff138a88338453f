#pragma once

#include "coordinator/api/admission.h"
#include "coordinator/api/audited_calls.h"
#include "coordinator/service/service.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::coordinator {

/// weft.v1.WorkerService: one Attach stream per worker, as a WorkerLink of the Service.
class WorkerApi : public v1::WorkerService::CallbackService {
 public:
  /// A worker attaches, with `tls`, as the one that its certificate names, and as no other.
  WorkerApi(coordinator::Service& service, Metrics& metrics, AuditedCalls& calls,
            Admission& admission, bool tls)
      : service_(service), metrics_(metrics), calls_(calls), admission_(admission), tls_(tls) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;

 private:
  coordinator::Service& service_;
  Metrics& metrics_;
  AuditedCalls& calls_;
  Admission& admission_;
  const bool tls_;
};

}  // namespace weft::coordinator
