// Times collectives over loopback TCP, ranks being threads of this process: first our all-reduce of
// f32 gradients beside Gloo's own, on the same memory, then others of ours.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

/// Seconds of the middle one of some runs of `operation`, on this rank.
double MedianSeconds(Collective& group, int64_t bytes, const std::function<void()>& operation) {
  std::vector<double> seconds(bytes < (1 << 20) ? 51 : 7);
  for (double& run : seconds) {
    (void)group.Barrier();
    Stopwatch watch;
    operation();
    run = watch.Lap();
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

void Row(const char* name, int ranks, int64_t bytes, double seconds, double sent_share) {
  std::printf("%-24s %5d %10.3f MiB %9.3f ms %7.2f GB/s sent by each rank\n", name, ranks,
              static_cast<double>(bytes) / (1 << 20), seconds * 1e3,
              static_cast<double>(bytes) * sent_share / seconds / 1e9);
}

/// Gloo's own all-reduce of `values`, which throws away nothing of its speed: in place, on a
/// connected context, by the algorithm that it takes for long tensors.
void ReduceByGlooAlone(const std::shared_ptr<gloo::Context>& context, std::vector<float>& values) {
  gloo::AllreduceOptions options(context);
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  options.setOutput(values.data(), values.size());
  gloo::allreduce(options);
}

/// Ours and Gloo's in turns on the same memory, so that what else the machine does hits both.
void Compare(int ranks, int64_t bytes, gloo::rendezvous::HashStore& gloo_store) {
  RunRanks(ranks, std::chrono::seconds(60), [&](Collective& group) {
    auto context = std::make_shared<gloo::rendezvous::Context>(group.rank(), ranks);
    auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
    context->connectFullMesh(gloo_store, device);
    std::vector<float> memory(static_cast<size_t>(bytes / 4), 0);
    const TensorView all(memory.data(), DType::kF32, {bytes / 4});
    const int rounds = bytes < (1 << 20) ? 101 : 15;
    std::vector<double> ours, gloos;
    const auto time = [&](std::vector<double>& seconds, const std::function<void()>& operation) {
      (void)group.Barrier();
      Stopwatch watch;
      operation();
      seconds.push_back(watch.Lap());
    };
    for (int round = 0; round < rounds; ++round) {
      time(ours, [&] { (void)group.AllReduce(Stream{}, all).Wait(Stream{}); });
      time(gloos, [&] { ReduceByGlooAlone(context, memory); });
    }
    (void)group.Barrier();
    if (group.rank() != 0) return;
    const auto median = [](std::vector<double>& seconds) {
      std::sort(seconds.begin(), seconds.end());
      return seconds[seconds.size() / 2];
    };
    const double own = median(ours), alone = median(gloos);
    const double sent = 2 * static_cast<double>(bytes) * (ranks - 1) / ranks / 1e9;
    std::printf("| %d | %.3f | %.3f | %.2f | %.3f | %.2f | %.2f |\n", ranks,
                static_cast<double>(bytes) / (1 << 20), own * 1e3, sent / own, alone * 1e3,
                sent / alone, alone / own);
  });
}

void Measure(int ranks, int64_t bytes) {
  const double share = (ranks - 1.0) / ranks;
  RunRanks(ranks, std::chrono::seconds(60), [&](Collective& group) {
    const Stream stream;
    const int64_t count = bytes / 4 / ranks * ranks;
    std::vector<float> memory(static_cast<size_t>(count), 1);
    std::vector<float> part_memory(static_cast<size_t>(count / ranks), 1);
    const TensorView all(memory.data(), DType::kF32, {count});
    const TensorView part(part_memory.data(), DType::kF32, {count / ranks});
    const TensorView half(memory.data(), DType::kBF16, {count});
    const bool first = group.rank() == 0;
    const auto row = [&](const char* name, int64_t payload, double sent,
                         const std::function<void()>& operation) {
      const double seconds = MedianSeconds(group, payload, operation);
      if (first) Row(name, ranks, payload, seconds, sent);
    };
    row("all-reduce bf16", bytes / 2, 2 * share,
        [&] { (void)group.AllReduce(stream, half).Wait(stream); });
    row("reduce-scatter f32", bytes, share,
        [&] { (void)group.ReduceScatter(stream, all, part).Wait(stream); });
    row("all-gather f32", bytes, share,
        [&] { (void)group.AllGather(stream, part, all).Wait(stream); });
  });
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  const int most = argc > 1 ? std::atoi(argv[1]) : 2;
  const int64_t sizes[] = {int64_t{1} << 10, int64_t{1} << 18, int64_t{1} << 20, int64_t{25} << 20};
  std::printf(
      "| ranks | MiB | Weft ms | GB/s | Gloo ms | GB/s | rate of Gloo's |\n"
      "|---|---|---|---|---|---|---|\n");
  for (int ranks = 2; ranks <= most; ++ranks) {
    for (const int64_t bytes : sizes) {
      gloo::rendezvous::HashStore store;
      weft::engine::Compare(ranks, bytes, store);
    }
  }
  for (int ranks = 2; ranks <= most; ++ranks) {
    for (const int64_t bytes : sizes) weft::engine::Measure(ranks, bytes);
  }
}
