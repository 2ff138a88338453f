#include "common/status.h"

#include <cerrno>
#include <memory>

#include <gtest/gtest.h>

namespace weft {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return InvalidError(std::to_string(value) + " is odd");
  return value / 2;
}

Result<int> Quarter(int value) {
  WEFT_ASSIGN_OR_RETURN(int half, Half(value));
  WEFT_ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}

Status CheckQuarter(int value) {
  WEFT_RETURN_IF_ERROR(Quarter(value).status());
  return OkStatus();
}

TEST(Status, NamesItsCodeAndKeepsItsMessage) {
  EXPECT_EQ(OkStatus().ToString(), "OK");
  EXPECT_EQ(NotFoundError("no job 7").ToString(), "NOT_FOUND: no job 7");
  EXPECT_EQ(DeniedError("no").ToString(), "DENIED: no");
  EXPECT_EQ(CorruptError("x").WithContext("reading a").ToString(), "CORRUPT: reading a: x");
  EXPECT_TRUE(OkStatus().WithContext("reading a").ok());
}

TEST(Status, MapsErrnoToWhatTheCallerDoesNext) {
  EXPECT_EQ(ErrnoError("opening f", ENOENT).code(), StatusCode::kNotFound);
  EXPECT_EQ(ErrnoError("opening f", EACCES).code(), StatusCode::kInvalid);
  EXPECT_EQ(ErrnoError("writing f", ENOSPC).code(), StatusCode::kExhausted);
  EXPECT_EQ(ErrnoError("linking f", EEXIST).code(), StatusCode::kConflict);
  EXPECT_EQ(ErrnoError("connecting", ECONNREFUSED).code(), StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoError("reading f", EIO).code(), StatusCode::kInternal);
  EXPECT_EQ(ErrnoError("writing f", ENOSPC).message(), "writing f: No space left on device");
}

TEST(Status, TellsAFullDiskFromNoMemoryWithContextToo) {
  for (const int full : {ENOSPC, EDQUOT, EFBIG}) {
    EXPECT_EQ(ErrnoError("writing f", full).WithContext("saving").kind(), FailureKind::kDiskFull);
  }
  EXPECT_EQ(DiskFullError("f").code(), StatusCode::kExhausted);
  EXPECT_EQ(ErrnoError("a thread", ENOMEM).kind(), FailureKind::kOther);
  EXPECT_NE(DiskFullError("f"), ExhaustedError("f"));
}

TEST(Result, MacrosPassValuesAndErrorsOn) {
  EXPECT_EQ(*Quarter(12), 3);
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  EXPECT_TRUE(CheckQuarter(8).ok());
  EXPECT_EQ(CheckQuarter(7).code(), StatusCode::kInvalid);
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> made = std::make_unique<int>(5);
  ASSERT_TRUE(made.ok());
  std::unique_ptr<int> taken = *std::move(made);
  EXPECT_EQ(*taken, 5);
}

TEST(ResultDeathTest, ReadingTheValueOfAnErrorAborts) {
  Result<int> failed = InvalidError("no value here");
  EXPECT_DEATH((void)failed.value(), "no value here");
  EXPECT_DEATH((void)Result<int>(OkStatus()), "needs a value or an error");
}

}  // namespace
}  // namespace weft
