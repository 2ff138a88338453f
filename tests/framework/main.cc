// The main of every test program: what testing::TempDir() names is a folder of the process's own,
// so that tests that run side by side may name their files alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  signal(SIGPIPE, SIG_IGN);  // as the daemons do: peers may have closed the sockets we write to
  std::string folder = testing::TempDir() + "weft_test_XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    std::perror(folder.c_str());
    return 1;
  }
  setenv("TEST_TMPDIR", folder.c_str(), 1);
  const pid_t owner = getpid();
  const int failed = RUN_ALL_TESTS();
  // What a failed test wrote is there to be looked at; a child of a test may come here, too.
  if (failed == 0 && getpid() == owner) {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  }
  return failed;
}
