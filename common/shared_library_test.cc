#include "common/shared_library.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kVariable = "WEFT_TEST_LIBRARY";

TEST(SharedLibrary, FindsFunctionsOfAFileAndOfTheProcess) {
  const Result<SharedLibrary> math = SharedLibrary::Load(kVariable, "libm.so.6", "none");
  ASSERT_TRUE(math.ok()) << math.status().message();
  double (*cosine)(double) = nullptr;
  ASSERT_TRUE(math->Find("cos", cosine).ok());
  EXPECT_EQ(cosine(0), 1);
  int (*absolute)(int) = nullptr;
  ASSERT_TRUE(SharedLibrary::OfProcess("none").Find("abs", absolute).ok());
  EXPECT_EQ(absolute(-3), 3);
}

TEST(SharedLibrary, SaysWhatIsMissingAndWhatToDo) {
  setenv(kVariable, "/no/such/library.so", 1);
  const Status file = SharedLibrary::Load(kVariable, "libm.so.6", "install it").status();
  unsetenv(kVariable);
  EXPECT_EQ(file.code(), StatusCode::kUnavailable);
  EXPECT_THAT(file.message(),
              AllOf(HasSubstr("loading /no/such/library.so"), HasSubstr("; hint: install it")));
  const Result<SharedLibrary> math = SharedLibrary::Load(kVariable, "libm.so.6", "install it");
  ASSERT_TRUE(math.ok());
  void (*function)() = nullptr;
  const Status symbol = math->Find("noSuchFunction", function);
  EXPECT_EQ(symbol.code(), StatusCode::kUnavailable);
  EXPECT_THAT(symbol.message(),
              AllOf(HasSubstr("looking for noSuchFunction"), HasSubstr("; hint: install it")));
}

}  // namespace
}  // namespace weft
