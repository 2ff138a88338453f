#include "worker/engine/optim/disk_adamw.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/check.h"
#include "worker/engine/optim/fused_optimizer.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/testing/parameter_values.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

/// Offloaded parameters of several tiles, one of them longer than a tile, with two optimizers.
struct Fixture {
  Allocator device;
  std::unique_ptr<HostMemoryPool> host;
  Context context;
  ParameterSet parameters;
  OptimizerSpec spec;
  std::vector<ParameterRule> rules;

  Fixture() {
    auto tier = HostMemoryPool::New({.directory = ::testing::TempDir()}, {});
    WEFT_CHECK(tier.ok(), tier.status().message());
    host = *std::move(tier);
    context.allocator = &device;
    context.host = host.get();
    const std::pair<const char*, int64_t> tables[] = {{"a", 7}, {"b", 1300}, {"c", 33}, {"d", 300}};
    for (const auto& [name, rows] : tables) {
      const Shape shape = {rows, 1001};
      parameters.SetStart(parameters.Register(name, shape, ParameterRole::kMlpUp), {0, 0.02});
    }
    parameters.Offload();
    WEFT_CHECK(parameters.Allocate(context, true).ok() && parameters.Initialize(1).ok(), "made");
    rules = *ResolveParameterRules(spec, parameters);
  }

  std::unique_ptr<DiskAdamW> OnDisk(AsyncFile::Queue queue) {
    Context below = InHostMemoryPool(context);
    auto made = DiskAdamW::New(below, spec, parameters, rules, TrainedParts(parameters), queue);
    WEFT_CHECK(made.ok(), made.status().message());
    return std::unique_ptr<DiskAdamW>(static_cast<DiskAdamW*>(made->release()));
  }

  Status Update(Optimizer& optimizer, int64_t t) {
    auto* gradients = parameters.gradients().As<float>();
    for (int64_t i = 0; i < parameters.GradientCount(); ++i) {
      gradients[i] = 0.01f * static_cast<float>((i * 7 + t * 13) % 101 - 50);
    }
    return optimizer.Update(context, {.learning_rate = 0.01, .update = t});
  }
};

std::vector<std::vector<float>> StateOf(const Optimizer& optimizer) {
  std::vector<std::vector<float>> values;
  for (const NamedTensor& tensor : optimizer.StateTensors()) values.push_back(ValuesOf(tensor));
  return values;
}

TEST(DiskAdamWTest, HasTheBitsOfTheFusedRuleAlsoAfterItsStateWasReadAndRestored) {
  for (const auto queue : {AsyncFile::Queue::kBest, AsyncFile::Queue::kThreads}) {
    Fixture plain, disk;
    auto fused = FusedOptimizer::New(plain.context, plain.spec, *FindFusedRule(plain.spec),
                                     plain.parameters, plain.rules, TrainedParts(plain.parameters));
    ASSERT_TRUE(fused.ok());
    std::unique_ptr<DiskAdamW> on_disk = disk.OnDisk(queue);
    for (int64_t t = 1; t <= 4; ++t) {
      ASSERT_TRUE(plain.Update(**fused, t).ok());
      const Status updated = disk.Update(*on_disk, t);
      ASSERT_TRUE(updated.ok()) << updated.message();
      if (t != 2) continue;
      // A state of its own is restored into another one.
      EXPECT_TRUE(StateOf(*on_disk) == StateOf(**fused));
      std::unique_ptr<DiskAdamW> other = disk.OnDisk(queue);
      const auto from = (*fused)->StateTensors(), to = other->StateTensors();
      ASSERT_EQ(from.size(), to.size());
      // Back to front, and in pieces that end anywhere: tiles are written and read again.
      for (size_t i = from.size(); i-- > 0;) {
        EXPECT_EQ(from[i].name, to[i].name);
        const auto bytes = std::as_bytes(std::span(
            from[i].view.As<float>(), static_cast<size_t>(from[i].view.shape.Elements())));
        constexpr size_t kPiece = 4 * 777'777;
        for (size_t at = 0; at < bytes.size(); at += kPiece) {
          const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
          ASSERT_TRUE(to[i].stored->Write(static_cast<int64_t>(at / 4), piece).ok());
        }
      }
      EXPECT_TRUE(StateOf(*other) == StateOf(**fused));
      on_disk = std::move(other);
    }
    EXPECT_TRUE(ValuesOf(disk.parameters) == ValuesOf(plain.parameters));
    EXPECT_TRUE(StateOf(*on_disk) == StateOf(**fused));
  }
}

TEST(DiskAdamWTest, AFileThatWasChangedOrCutIsAnError) {
  for (const bool cut : {false, true}) {
    Fixture disk;
    const auto optimizer = disk.OnDisk(AsyncFile::Queue::kThreads);
    ASSERT_TRUE(disk.Update(*optimizer, 1).ok());
    const int file = optimizer->file().descriptor();
    if (cut) {
      ASSERT_EQ(ftruncate(file, 1 << 20), 0);
    } else {
      auto* block = static_cast<char*>(std::aligned_alloc(4096, 4096));
      ASSERT_EQ(pread(file, block, 4096, 4096), 4096);
      block[5] ^= 1;
      ASSERT_EQ(pwrite(file, block, 4096, 4096), 4096);
      std::free(block);
    }
    const Status status = disk.Update(*optimizer, 2);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_THAT(status.message(), HasSubstr(cut ? "ends too early" : "is not what was written"));
    std::vector<std::byte> read(4000);
    EXPECT_EQ(optimizer->StateTensors()[0].stored->Read(0, read).code(), StatusCode::kCorrupt);
  }
}

}  // namespace
}  // namespace weft::engine
