#pragma once

#include <grpcpp/support/status.h>

#include "common/status.h"

namespace weft {

/// Weft's status as gRPC carries it, one code to one code (listed in coordinator.proto).
grpc::Status ToGrpcStatus(const Status& status);

/// And back; codes that Weft's services do not answer with (DEADLINE_EXCEEDED, CANCELLED, ...) fall
/// on the nearest, and UNAUTHENTICATED is kDenied, too.
Status FromGrpcStatus(const grpc::Status& status);

}  // namespace weft
