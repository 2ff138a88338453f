#pragma once

#include "coordinator/service/service.h"
#include "weft/v1/worker.grpc.pb.h"

namespace weft::coordinator {

/// weft.v1.WorkerService: one Attach stream per worker, as a WorkerLink of the Service.
class WorkerApi : public v1::WorkerService::CallbackService {
 public:
  WorkerApi(coordinator::Service& service, Metrics& metrics)
      : service_(service), metrics_(metrics) {}

  grpc::ServerBidiReactor<v1::WorkerMessage, v1::CoordinatorMessage>* Attach(
      grpc::CallbackServerContext* context) override;

 private:
  coordinator::Service& service_;
  Metrics& metrics_;
};

}  // namespace weft::coordinator
