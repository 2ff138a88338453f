#include "common/wait_name.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <string>

namespace weft {
namespace {

std::string NameOfThisThread() {
  char name[16];
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

TEST(WaitName, ShowsWhatTheThreadWaitsForWhileItDoes) {
  const std::string before = NameOfThisThread();
  EXPECT_EQ(WaitOf(before), "");
  {
    const WaitName name("all-reduce");
    EXPECT_EQ(WaitOf(NameOfThisThread()), "all-reduce");
    {
      const WaitName inner("what is longer than a name");
      EXPECT_EQ(WaitOf(NameOfThisThread()), "what is longer");
    }
    EXPECT_EQ(WaitOf(NameOfThisThread()), "all-reduce");
  }
  EXPECT_EQ(NameOfThisThread(), before);
}

}  // namespace
}  // namespace weft
