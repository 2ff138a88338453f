#pragma once

#include <string>

#include "coordinator/service/service.h"
#include "weft/v1/coordinator.grpc.pb.h"

namespace weft::coordinator {

/// Sends the job at once and after changes; several changes while the client reads become one.
grpc::ServerWriteReactor<v1::JobUpdate>* NewJobWatch(Service& service, Metrics& metrics,
                                                     const std::string& job_id);

/// Sends stored log lines from the request's cursor on, and new ones as they are stored.
grpc::ServerWriteReactor<v1::LogLine>* NewLogStream(Service& service, Metrics& metrics,
                                                    const v1::StreamLogsRequest& request);

}  // namespace weft::coordinator
