#include "common/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <optional>

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

TEST(SharedLibrary, IsClosedWithItsLastCopyWhereItIsLoadedWhileUsed) {
  constexpr const char* kFile = "libBrokenLocale.so.1";  // which no test is linked against
  const auto loaded = [] {
    void* const handle = dlopen(kFile, RTLD_LAZY | RTLD_NOLOAD);
    if (handle != nullptr) dlclose(handle);
    return handle != nullptr;
  };
  ASSERT_FALSE(loaded());
  std::optional<SharedLibrary> copy;
  {
    const Result<SharedLibrary> library = SharedLibrary::LoadWhileUsed(kFile, "none");
    ASSERT_TRUE(library.ok()) << library.status().message();
    copy = *library;
  }
  EXPECT_TRUE(loaded());
  copy.reset();
  EXPECT_FALSE(loaded());
  EXPECT_EQ(SharedLibrary::LoadWhileUsed("/no/such/library.so", "none").status().code(),
            StatusCode::kUnavailable);
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
