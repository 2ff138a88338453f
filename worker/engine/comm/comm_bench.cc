// Times collectives over loopback TCP, ranks being threads of this process: first our all-reduce of
// f32 gradients against Gloo's own, on the same memory, then others of ours.
//
//   comm_bench RANKS [FILE]
//
// From two to RANKS ranks. Prints tables; FILE gets all that was measured, as JSON.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include "common/json.h"
#include "worker/engine/comm/gloo_device.h"
#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

/// Each with connections of its own: what the kernel knows of one is not what it knows of the next.
constexpr int kConnections = 3;

int RoundsOf(int64_t bytes) {
  return bytes > (1 << 20) ? 9 : 101;
}

/// Processor time of this process, so of all ranks.
double CpuSeconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// The rounds of one operation, on one rank.
struct Times {
  std::vector<double> seconds;
  double cpu_seconds = 0;

  void Add(Collective& group, const std::function<void()>& operation) {
    (void)group.Barrier();
    const double cpu = CpuSeconds();
    Stopwatch watch;
    operation();
    seconds.push_back(watch.Lap());
    cpu_seconds += CpuSeconds() - cpu;
  }
  void Add(const Times& others) {
    seconds.insert(seconds.end(), others.seconds.begin(), others.seconds.end());
    cpu_seconds += others.cpu_seconds;
  }
  double Quantile(double share) const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(share * static_cast<double>(sorted.size() - 1))];
  }
  double Mean() const {
    return std::accumulate(seconds.begin(), seconds.end(), 0.0) /
           static_cast<double>(seconds.size());
  }
  Json ToJson() const {
    Json microseconds = Json::array();
    for (const double time : seconds) microseconds.push_back(std::llround(time * 1e6));
    return {{"median_seconds", Quantile(0.5)},
            {"ninth_decile_seconds", Quantile(0.9)},
            {"mean_seconds", Mean()},
            {"mean_cpu_seconds_of_all_ranks", cpu_seconds / static_cast<double>(seconds.size())},
            {"microseconds", std::move(microseconds)}};
  }
};

/// Gloo's own all-reduce, which throws away nothing of its speed: in place, on a connected context,
/// by the algorithm that it takes for long tensors.
class GlooAlone {
 public:
  GlooAlone(int rank, int ranks, gloo::rendezvous::HashStore& store,
            std::shared_ptr<gloo::transport::Device> device)
      : context_(std::make_shared<gloo::rendezvous::Context>(rank, ranks)) {
    context_->connectFullMesh(store, device);
  }

  void Reduce(std::vector<float>& values) {
    gloo::AllreduceOptions options(context_);
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setReduceFunction(
        static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
    options.setOutput(values.data(), values.size());
    gloo::allreduce(options);
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
};

struct Comparison {
  Times weft, gloo;
  Times gloo_on_ours;  ///< Gloo's algorithm over the connections that ours uses.
};

/// In turns on the same memory, so that what else the machine does hits all.
Comparison Compare(int ranks, int64_t bytes) {
  Comparison first;
  gloo::rendezvous::HashStore store, store_of_ours;
  RunRanks(ranks, std::chrono::seconds(60), [&](Collective& group) {
    GlooAlone gloo(group.rank(), ranks, store, gloo::transport::tcp::CreateDevice("127.0.0.1"));
    GlooAlone gloo_on_ours(group.rank(), ranks, store_of_ours, NewGlooDevice("127.0.0.1", "bench"));
    std::vector<float> memory(static_cast<size_t>(bytes / 4), 0);
    const TensorView all(memory.data(), DType::kF32, {bytes / 4});
    Comparison own;
    for (int round = 0; round < RoundsOf(bytes); ++round) {
      own.weft.Add(group, [&] { (void)group.AllReduce(Stream{}, all).Wait(Stream{}); });
      own.gloo.Add(group, [&] { gloo.Reduce(memory); });
      own.gloo_on_ours.Add(group, [&] { gloo_on_ours.Reduce(memory); });
    }
    (void)group.Barrier();
    if (group.rank() == 0) first = std::move(own);
  });
  return first;
}

Json CompareAll(int most, std::span<const int64_t> sizes) {
  std::printf(
      "| ranks | KiB | Weft ms | 9 of 10 in | Gloo ms | 9 of 10 in | Gloo on Weft's connections ms "
      "| 9 of 10 in | Weft GB/s | mean rate of Gloo's "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
  Json rows = Json::array();
  for (int ranks = 2; ranks <= most; ++ranks) {
    for (const int64_t bytes : sizes) {
      Comparison all;
      for (int i = 0; i < kConnections; ++i) {
        const Comparison one = Compare(ranks, bytes);
        all.weft.Add(one.weft);
        all.gloo.Add(one.gloo);
        all.gloo_on_ours.Add(one.gloo_on_ours);
      }
      const double sent = 2 * static_cast<double>(bytes) * (ranks - 1) / ranks / 1e9;
      std::printf("| %d | %g |", ranks, static_cast<double>(bytes) / 1024);
      for (const Times* times : {&all.weft, &all.gloo, &all.gloo_on_ours}) {
        std::printf(" %.2f | %.2f |", times->Quantile(0.5) * 1e3, times->Quantile(0.9) * 1e3);
      }
      std::printf(" %.2f | %.2f |\n", sent / all.weft.Quantile(0.5),
                  all.gloo.Mean() / all.weft.Mean());
      std::fflush(stdout);
      rows.push_back({{"ranks", ranks},
                      {"bytes", bytes},
                      {"weft", all.weft.ToJson()},
                      {"gloo", all.gloo.ToJson()},
                      {"gloo_on_ours", all.gloo_on_ours.ToJson()}});
    }
  }
  return rows;
}

Json Measure(int ranks, int64_t bytes) {
  const double share = (ranks - 1.0) / ranks;
  Json rows = Json::array();
  RunRanks(ranks, std::chrono::seconds(60), [&](Collective& group) {
    const Stream stream;
    const int64_t count = bytes / 4 / ranks * ranks;
    std::vector<float> memory(static_cast<size_t>(count), 1);
    std::vector<float> part_memory(static_cast<size_t>(count / ranks), 1);
    const TensorView all(memory.data(), DType::kF32, {count});
    const TensorView part(part_memory.data(), DType::kF32, {count / ranks});
    const TensorView half(memory.data(), DType::kBF16, {count});
    const auto row = [&](const char* name, int64_t payload, double sent_share,
                         const std::function<void()>& operation) {
      Times times;
      for (int round = 0; round < RoundsOf(payload); ++round) times.Add(group, operation);
      if (group.rank() != 0) return;
      std::printf("| %s | %d | %g | %.2f | %.2f |\n", name, ranks,
                  static_cast<double>(payload) / 1024, times.Quantile(0.5) * 1e3,
                  static_cast<double>(payload) * sent_share / times.Quantile(0.5) / 1e9);
      rows.push_back(
          {{"operation", name}, {"ranks", ranks}, {"bytes", payload}, {"times", times.ToJson()}});
    };
    row("all-reduce bf16", bytes / 2, 2 * share,
        [&] { (void)group.AllReduce(stream, half).Wait(stream); });
    row("reduce-scatter f32", bytes, share,
        [&] { (void)group.ReduceScatter(stream, all, part).Wait(stream); });
    row("all-gather f32", bytes, share,
        [&] { (void)group.AllGather(stream, part, all).Wait(stream); });
  });
  return rows;
}

Json MeasureAll(int most, std::span<const int64_t> sizes) {
  std::printf("\n| operation | ranks | KiB | ms | GB/s |\n|---|---|---|---|---|\n");
  Json all = Json::array();
  for (int ranks = 2; ranks <= most; ++ranks) {
    for (const int64_t bytes : sizes) {
      for (Json& row : Measure(ranks, bytes)) all.push_back(std::move(row));
    }
  }
  return all;
}

/// The first line of a file, or of its line that begins so, what is behind the colon.
std::string LineOf(const char* path, const std::string& begin = "") {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(begin, 0) != 0) continue;
    return begin.empty() ? line : line.substr(line.find(':') + 2);
  }
  return "";
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  using namespace weft::engine;
  const int most = argc > 1 ? std::atoi(argv[1]) : 2;
  constexpr std::array kSizes = {int64_t{1} << 10, int64_t{1} << 18, int64_t{1} << 20,
                                 int64_t{25} << 20};
  const weft::Json report = {
      {"cpu", LineOf("/proc/cpuinfo", "model name")},
      {"kernel", LineOf("/proc/sys/kernel/osrelease")},
      {"congestion_control", LineOf("/proc/sys/net/ipv4/tcp_congestion_control")},
      {"all_reduce_f32", CompareAll(most, kSizes)},
      {"others", MeasureAll(most, kSizes)},
  };
  if (argc > 2) std::ofstream(argv[2]) << report.dump() << "\n";
}
