#include "common/http/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft::http {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CheckPlainPages, LoopbackIsOpenAndOtherAddressesAreAskedFor) {
  for (const char* address : {"127.0.0.1:0", "127.8.0.1:7071", "localhost:1", "[::1]:7071"}) {
    EXPECT_TRUE(CheckPlainPages(address, false).ok()) << address;
  }
  for (const char* address : {"0.0.0.0:7071", "[::]:7071", ":7071", "10.0.0.7:7071", "head:7071"}) {
    const Status refused = CheckPlainPages(address, false);
    EXPECT_EQ(refused.code(), StatusCode::kInvalid) << address;
    EXPECT_THAT(refused.message(),
                AllOf(HasSubstr(address), HasSubstr("hint: listen on 127.0.0.1:7071"),
                      HasSubstr("--metrics-insecure")));
    EXPECT_TRUE(CheckPlainPages(address, true).ok()) << address;
  }
  EXPECT_EQ(CheckPlainPages("here", true).code(), StatusCode::kInvalid) << "no address";
}

}  // namespace
}  // namespace weft::http
