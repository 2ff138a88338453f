// Jobs that cannot succeed end soon, and say why: numbers that are not finite, and no memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "tests/framework/cluster.h"

namespace weft::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;

/// A job of one rank that takes about 1.7 GiB, 300 MiB of them in one piece for the parameters. One
/// thread, so that stacks and heaps of threads are no part of it on a machine with many cores.
v1::JobSpec LargeJob(const Cluster& cluster) {
  v1::JobSpec spec = cluster.TinyJob("large", 10, 1);
  spec.mutable_model()->set_layers(6);
  spec.mutable_model()->set_width(1024);
  spec.mutable_model()->set_heads(8);
  spec.mutable_resources()->set_threads_per_rank(1);
  return spec;
}

TEST(Failures, OfNumericsEndAJobWithoutARetry) {
  Cluster cluster({.workers = 1});
  v1::JobSpec spec = cluster.TinyJob("diverging", 200);
  spec.mutable_optimizer()->set_learning_rate(100);
  spec.mutable_schedule()->set_kind("constant");
  spec.mutable_schedule()->set_warmup_steps(0);
  spec.mutable_train()->set_gradient_clip_norm(0);
  v1::Job job = cluster.Await(cluster.Submit(spec), v1::FAILED);
  EXPECT_EQ(v1::Reason_Name(job.reason()), "NUMERICS");
  EXPECT_EQ(job.attempts_size(), 1);
  EXPECT_THAT(job.message(), AllOf(HasSubstr("the training diverged"), HasSubstr("hint: lower")));
  EXPECT_LT(job.progress().step(), 60);
}

void ExpectOutOfMemoryTwice(const v1::Job& job, const std::string& words) {
  EXPECT_EQ(v1::Reason_Name(job.reason()), "RETRIES_EXHAUSTED");
  ASSERT_EQ(job.attempts_size(), 2) << "the first may have had a greedy neighbour";
  for (const v1::Attempt& attempt : job.attempts()) {
    EXPECT_EQ(v1::Reason_Name(attempt.reason()), "OUT_OF_MEMORY");
    EXPECT_THAT(attempt.message(), AllOf(HasSubstr(words), HasSubstr("; the plan expected 1."),
                                         HasSubstr("optimizer "), HasSubstr(" per rank, worker "),
                                         HasSubstr(" offers "), HasSubstr("; within "),
                                         HasSubstr("change to that plan would do")));
  }
  EXPECT_THAT(job.message(),
              AllOf(HasSubstr("gave up after 2 attempts"), HasSubstr(words), HasSubstr("hint:")));
}

TEST(Failures, OfAllocationsAreRetriedOnce) {
  const std::string trainer = ::testing::TempDir() + "trainer";
  std::ofstream(trainer) << "#!/bin/sh\nulimit -v 280000\nexport MALLOC_ARENA_MAX=1\nexec "
                         << WEFT_BINARY_DIR "/weft-trainer \"$@\"\n";
  ASSERT_EQ(chmod(trainer.c_str(), 0755), 0);
  Cluster cluster({.workers = 1, .ranks = {{"WEFT_WORKER_TRAINER", trainer}}});
  v1::Job job = cluster.Await(cluster.Submit(LargeJob(cluster)), v1::FAILED);
  ExpectOutOfMemoryTwice(job, "bytes for parameters");
  EXPECT_TRUE(cluster.Checkpoints(job.id()).empty());
  unlink(trainer.c_str());
}

/// A memory cgroup inside this process's own, of version 1 or 2, with a limit.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t limit_bytes) {
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; std::getline(lines, line) && path_.empty();) {
      const bool v1 = line.find(":memory:") != std::string::npos;
      if (!v1 && line.rfind("0::", 0) != 0) continue;
      const std::string own = line.substr(line.find(':', line.find(':') + 1) + 1);
      const std::string folder = (v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup") + own +
                                 "/weft_test_" + std::to_string(getpid());
      if (mkdir(folder.c_str(), 0755) != 0) {
        error_ = folder + ": " + strerror(errno);
        continue;
      }
      path_ = folder;
      std::ofstream limit(folder + (v1 ? "/memory.limit_in_bytes" : "/memory.max"));
      if (!(limit << limit_bytes << std::flush)) {
        error_ = folder + " takes no limit";
        rmdir(path_.c_str());
        path_.clear();
      }
    }
  }
  ~MemoryGroup() {
    if (!path_.empty()) {
      EXPECT_EQ(rmdir(path_.c_str()), 0) << path_ << ": " << strerror(errno);
    }
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  /// Why there is none; empty when there is.
  std::string error() const { return path_.empty() ? error_ : ""; }
  /// Moves a process, and what it starts from now on, into the group.
  void Take(pid_t pid) const {
    std::ofstream procs(path_ + "/cgroup.procs");
    EXPECT_TRUE(procs << pid << std::flush) << path_;
  }

 private:
  std::string path_;
  std::string error_ = "no memory controller";
};

TEST(Failures, OfRanksThatTheKernelKillsForMemoryAreRetriedOnce) {
  MemoryGroup group(300 * kMiB);
  if (!group.error().empty()) {
    GTEST_SKIP() << "no memory cgroup can be made here (needs root): " << group.error();
  }
  Cluster cluster({.workers = 1});
  group.Take(cluster.worker(0).pid());
  v1::Job job = cluster.Await(cluster.Submit(LargeJob(cluster)), v1::FAILED);
  ExpectOutOfMemoryTwice(job, "was killed by the kernel because memory ran out");
  EXPECT_EQ(job.attempts(0).plan().rank_workers_size(), 1);
  EXPECT_TRUE(cluster.worker(0).Alive()) << "the daemon lives on";
}

}  // namespace
}  // namespace weft::testing
