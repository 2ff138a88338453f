#pragma once

#include <grpcpp/support/status.h>

#include "common/status.h"

namespace weft {

/// Weft's status as gRPC carries it, one code to one code (listed in coordinator.proto).
grpc::Status ToGrpcStatus(const Status& status);

/// And back; codes that Weft does not send (DEADLINE_EXCEEDED, CANCELLED, ...) fall on the nearest.
Status FromGrpcStatus(const grpc::Status& status);

/// Whether FromGrpcStatus made it of a refusal: the server does not know the caller, or the caller
/// may not do that.
bool IsDenied(const Status& status);

}  // namespace weft
