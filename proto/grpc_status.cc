#include "proto/grpc_status.h"

namespace weft {

grpc::Status ToGrpcStatus(const Status& status) {
  grpc::StatusCode code = grpc::StatusCode::INTERNAL;
  switch (status.code()) {
    case StatusCode::kOk:
      return grpc::Status::OK;
    case StatusCode::kInvalid:
      code = grpc::StatusCode::INVALID_ARGUMENT;
      break;
    case StatusCode::kNotFound:
      code = grpc::StatusCode::NOT_FOUND;
      break;
    case StatusCode::kConflict:
      code = grpc::StatusCode::FAILED_PRECONDITION;
      break;
    case StatusCode::kUnavailable:
      code = grpc::StatusCode::UNAVAILABLE;
      break;
    case StatusCode::kExhausted:
      code = grpc::StatusCode::RESOURCE_EXHAUSTED;
      break;
    case StatusCode::kAborted:
      code = grpc::StatusCode::ABORTED;
      break;
    case StatusCode::kCorrupt:
      code = grpc::StatusCode::DATA_LOSS;
      break;
    case StatusCode::kInternal:
      break;
    case StatusCode::kDenied:
      code = grpc::StatusCode::PERMISSION_DENIED;
      break;
  }
  return {code, status.message()};
}

Status FromGrpcStatus(const grpc::Status& status) {
  StatusCode code = StatusCode::kInternal;
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return OkStatus();
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      code = StatusCode::kInvalid;
      break;
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      code = StatusCode::kDenied;
      break;
    case grpc::StatusCode::NOT_FOUND:
      code = StatusCode::kNotFound;
      break;
    case grpc::StatusCode::ALREADY_EXISTS:
    case grpc::StatusCode::FAILED_PRECONDITION:
      code = StatusCode::kConflict;
      break;
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      code = StatusCode::kUnavailable;
      break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      code = StatusCode::kExhausted;
      break;
    case grpc::StatusCode::ABORTED:
    case grpc::StatusCode::CANCELLED:
      code = StatusCode::kAborted;
      break;
    case grpc::StatusCode::DATA_LOSS:
      code = StatusCode::kCorrupt;
      break;
    default:
      break;
  }
  return {code, status.error_message()};
}

}  // namespace weft
