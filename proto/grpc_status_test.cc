#include "proto/grpc_status.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

TEST(GrpcStatus, CarriesEachCodeAndTheMessage) {
  for (const StatusCode code :
       {StatusCode::kOk, StatusCode::kInvalid, StatusCode::kNotFound, StatusCode::kConflict,
        StatusCode::kUnavailable, StatusCode::kExhausted, StatusCode::kAborted,
        StatusCode::kCorrupt, StatusCode::kInternal, StatusCode::kDenied}) {
    const Status status(code, code == StatusCode::kOk ? "" : "why; hint: what");
    EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status)), status) << StatusCodeName(code);
  }
  EXPECT_EQ(ToGrpcStatus(DeniedError("no")).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST(GrpcStatus, WhoIsUnknownIsDeniedToo) {
  const Status status = FromGrpcStatus({grpc::StatusCode::UNAUTHENTICATED, "who are you?"});
  EXPECT_EQ(status, DeniedError("who are you?"));
  EXPECT_EQ(FromGrpcStatus({grpc::StatusCode::DEADLINE_EXCEEDED, ""}).code(),
            StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft
