#include "worker/daemon/machine.h"

#include <gtest/gtest.h>

#include <thread>

#include "common/env.h"

namespace weft::daemon {
namespace {

/// A made-up /proc and /sys.
class FakeRoot {
 public:
  FakeRoot() : path_(::testing::TempDir() + "machine") {}
  ~FakeRoot() { EXPECT_TRUE(Env::Posix().RemoveTree(path_).ok()); }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_TRUE(Env::Posix().CreateDirs(DirName(path_ + name)).ok());
    ASSERT_TRUE(WriteFileAtomic(Env::Posix(), path_ + name, text).ok());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(Machine, ReadsThisOne) {
  Machine machine = ReadMachine();
  EXPECT_GE(machine.cores, 1);
  EXPECT_LE(machine.cores, static_cast<int64_t>(std::thread::hardware_concurrency()));
  EXPECT_GT(machine.memory_bytes, 1 << 24);
  EXPECT_LE(machine.memory_limit_bytes, machine.memory_bytes);
}

TEST(Machine, HonoursCgroupsOfBothVersionsAndTheirParents) {
  FakeRoot root;
  root.Write("/proc/cpuinfo", "processor\t: 0\nmodel name\t: Loom 3000 @ 2 GHz\n");
  root.Write("/proc/meminfo", "MemTotal:       1000000 kB\nMemFree: 5 kB\n");
  root.Write("/proc/self/cgroup", "0::/pod/box\n");
  root.Write("/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
  root.Write("/sys/fs/cgroup/pod/cpu.max", "50000 100000\n");
  root.Write("/sys/fs/cgroup/pod/box/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/pod/memory.max", "123456789\n");
  root.Write("/sys/fs/cgroup/pod/box/memory.events", "low 0\noom 4\noom_kill 3\n");
  Machine machine = ReadMachine(root.path());
  EXPECT_EQ(machine.cpu_model, "Loom 3000 @ 2 GHz");
  EXPECT_EQ(machine.cores, 1);
  EXPECT_EQ(machine.memory_bytes, 1024000000);
  EXPECT_EQ(machine.memory_limit_bytes, 123456789);
  EXPECT_EQ(OomKills(root.path()), 3);

  root.Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/b\n");
  root.Write("/sys/fs/cgroup/memory/b/memory.limit_in_bytes", "5000000\n");
  root.Write("/sys/fs/cgroup/memory/b/memory.oom_control", "under_oom 0\noom_kill 7\n");
  machine = ReadMachine(root.path());
  EXPECT_EQ(machine.memory_limit_bytes, 5000000);
  EXPECT_EQ(OomKills(root.path()), 7);
}

TEST(Machine, ToleratesNonsense) {
  FakeRoot root;
  for (const char* text : {"", "\n", "::", "0::", "x", "9223372036854775808999 -1"}) {
    for (const char* name : {"/proc/self/cgroup", "/proc/meminfo", "/proc/cpuinfo",
                             "/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/memory.max"}) {
      root.Write(name, text);
    }
    EXPECT_GE(ReadMachine(root.path()).cores, 1) << text;
    EXPECT_EQ(OomKills(root.path()), 0) << text;
  }
}

TEST(AddressTowards, IsLoopbackForALocalPeer) {
  EXPECT_EQ(*AddressTowards("127.0.0.1:7070"), "127.0.0.1");
  EXPECT_EQ(*AddressTowards("localhost:7070"), "127.0.0.1");
  for (const char* bad : {"", "nohost", ":1", "127.0.0.1:not_a_port"}) {
    EXPECT_FALSE(AddressTowards(bad).ok()) << bad;
  }
}

TEST(Machine, IsNamedByHostAndBoot) {
  FakeRoot root;
  root.Write("/proc/sys/kernel/hostname", "loom-1\n");
  root.Write("/proc/sys/kernel/random/boot_id", "0123abcd-9876-4321-8888-0123456789ab\n");
  EXPECT_EQ(MachineName(root.path()), "loom-1-0123abcd");
  EXPECT_EQ(MachineName(), MachineName());
}

}  // namespace
}  // namespace weft::daemon
