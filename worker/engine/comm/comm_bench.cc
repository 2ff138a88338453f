// Times collectives over loopback TCP, ranks being threads of this process: ours beside Gloo's own
// ring all-reduce.

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

void Measure(int ranks, int64_t bytes, gloo::rendezvous::HashStore& gloo_store) {
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
    row("all-reduce f32", bytes, 2 * share,
        [&] { (void)group.AllReduce(stream, all).Wait(stream); });
    {
      auto context = std::make_shared<gloo::rendezvous::Context>(group.rank(), ranks);
      auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
      context->connectFullMesh(gloo_store, device);
      row("Gloo's all-reduce f32", bytes, 2 * share, [&] {
        gloo::AllreduceOptions options(context);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(
            static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
        options.setOutput(memory.data(), memory.size());
        gloo::allreduce(options);
      });
      (void)group.Barrier();
    }
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
  for (int ranks = 2; ranks <= most; ++ranks) {
    for (const int64_t bytes : {int64_t{1} << 10, int64_t{1} << 18, int64_t{25} << 20}) {
      gloo::rendezvous::HashStore store;
      weft::engine::Measure(ranks, bytes, store);
    }
  }
}
