#include "coordinator/planner/step_rates.h"

#include <gtest/gtest.h>

#include "coordinator/planner/processor_rates.h"
#include "coordinator/planner/testing.h"

namespace weft::planner {
namespace {

TEST(StepRates, OfAGpuDoesNotCountThreads) {
  WorkerProfile worker = GpuWorker("g", 2, kGiB);
  worker.devices[0].unusable = "lost";
  worker.devices[1].links[0].bytes_per_second = 250e9;
  const auto rates = MakeStepRates(worker, DType::kBF16, true);
  for (const GemmRate& rate : worker.devices[1].gemm) {
    EXPECT_NEAR(rates->GemmFlopsPerSecond(rate.m, rate.n, rate.k, 8), rate.flops_per_second,
                0.01 * rate.flops_per_second);
  }
  EXPECT_NEAR(rates->MemoryBytesPerSecond({8, 2}), 0.9 * 3e12, 1);
  EXPECT_EQ(rates->LinkBytesPerSecond(true), 250e9);
  EXPECT_EQ(rates->LinkBytesPerSecond(false), worker.loopback_bytes_per_second);
  EXPECT_GT(rates->GemmFlopsPerSecond(DType::kF32, 4096, 4096, 4096, 1), 1e12);
}

TEST(StepRates, RanksTakeTurnsOnProcessorsAndNotOnGpus) {
  WorkerProfile worker = GpuWorker("g", 4, kGiB);
  worker.processors = 8;
  const RankPlace place{.threads = 8, .ranks_on_worker = 4};
  EXPECT_DOUBLE_EQ(MakeStepRates(worker, DType::kBF16, false)->Overlap(place), 0.5 / 4);
  EXPECT_DOUBLE_EQ(MakeStepRates(worker, DType::kBF16, true)->Overlap(place), 0.5);
}

TEST(StepRates, TakesTheNetworkForWhatLiesBetweenMachines) {
  WorkerProfile worker = Worker("w", 4, kGiB);
  worker.network_bytes_per_second = 0.125e9;
  const ProcessorRates processor(worker, DType::kF32);
  EXPECT_EQ(processor.LinkBytesPerSecond(true), worker.loopback_bytes_per_second);
  EXPECT_EQ(processor.LinkBytesPerSecond(false), 0.125e9);
  // Ranks on processors send no faster than they do to themselves, GPUs do.
  worker.network_bytes_per_second = 50e9;
  EXPECT_EQ(ProcessorRates(worker, DType::kF32).LinkBytesPerSecond(false),
            worker.loopback_bytes_per_second);
  WorkerProfile gpus = GpuWorker("g", 2, kGiB);
  gpus.network_bytes_per_second = 50e9;
  EXPECT_EQ(MakeStepRates(gpus, DType::kBF16, true)->LinkBytesPerSecond(false), 25e9);
}

TEST(StepRates, MessagesTakeLongerBetweenMachines) {
  WorkerProfile near = GpuWorker("g", 2, kGiB), far = near;
  far.network_latency_seconds = 2e-3;
  const RankPlace place{.threads = 1, .ranks_on_worker = 2};
  const RankGroup within{.ranks = 2, .on_worker = 2}, across{.ranks = 4, .on_worker = 2};
  for (const bool on_devices : {false, true}) {
    const auto fast = MakeStepRates(near, DType::kBF16, on_devices);
    const auto slow = MakeStepRates(far, DType::kBF16, on_devices);
    EXPECT_DOUBLE_EQ(slow->PointToPoint(place, across).message_seconds,
                     fast->PointToPoint(place, across).message_seconds + 2e-3);
    EXPECT_EQ(slow->PointToPoint(place, within).message_seconds,
              fast->PointToPoint(place, within).message_seconds);
    EXPECT_GT(slow->AllReduceSeconds(place, across, 1, 100),
              0.2 + fast->AllReduceSeconds(place, across, 1, 100));
    EXPECT_EQ(slow->AllReduceSeconds(place, within, 1, 100),
              fast->AllReduceSeconds(place, within, 1, 100));
  }
}

TEST(StepRates, MessagesAreSlowerWhereRanksSpanRacks) {
  WorkerProfile worker = GpuWorker("g", 2, kGiB);
  worker.network_bytes_per_second = 1e9;
  worker.between_racks_bytes_per_second = 1e8;
  worker.between_racks_latency_seconds = 1e-3;
  const RankPlace near{.threads = 1, .ranks_on_worker = 2};
  const RankPlace far{.threads = 1, .ranks_on_worker = 2, .spans_racks = true};
  const RankGroup within{.ranks = 2, .on_worker = 2}, across{.ranks = 4, .on_worker = 2};
  for (const bool on_devices : {false, true}) {
    const auto rates = MakeStepRates(worker, DType::kBF16, on_devices);
    const double share = on_devices ? 0.5 : 1;
    const Wire fast = rates->PointToPoint(near, across), slow = rates->PointToPoint(far, across);
    EXPECT_DOUBLE_EQ(fast.bytes_per_second, 1e9 * share);
    EXPECT_DOUBLE_EQ(slow.bytes_per_second, 1e8 * share);
    EXPECT_DOUBLE_EQ(slow.message_seconds, fast.message_seconds + 1e-3);
    EXPECT_EQ(rates->PointToPoint(far, within).bytes_per_second,
              rates->PointToPoint(near, within).bytes_per_second);
    EXPECT_EQ(rates->AllReduceSeconds(far, within, 1e9, 1),
              rates->AllReduceSeconds(near, within, 1e9, 1));
    EXPECT_GT(rates->AllReduceSeconds(far, across, 1e9, 1),
              5 * rates->AllReduceSeconds(near, across, 1e9, 1));
    EXPECT_GT(rates->AllToAllSeconds(far, across, 1e9, 3),
              5 * rates->AllToAllSeconds(near, across, 1e9, 3));
    EXPECT_GT(rates->HostGatherSeconds(far, across, 1e9, 1),
              5 * rates->HostGatherSeconds(near, across, 1e9, 1));
    // The latency of many small messages counts.
    EXPECT_GT(rates->AllReduceSeconds(far, across, 1, 100),
              0.2 + rates->AllReduceSeconds(near, across, 1, 100));
  }
}

TEST(StepRates, AGroupIsAsSlowAsItsLinkAndNeverFaster) {
  WorkerProfile worker = GpuWorker("g", 2, kGiB);
  worker.network_bytes_per_second = 1e9;
  worker.network_latency_seconds = 1e-4;
  const RankPlace place{.threads = 1, .ranks_on_worker = 2};
  const RankGroup plain{.ranks = 4, .on_worker = 2};
  const auto with = [&](const MachineLink& link) {
    RankGroup group = plain;
    group.link = link;
    return group;
  };
  const RankGroup slow = with({1e8, 1e-3}), fast = with({1e12, 1e-6});
  const RankGroup within{.ranks = 2, .on_worker = 2, .link = slow.link};
  for (const bool on_devices : {false, true}) {
    const auto rates = MakeStepRates(worker, DType::kBF16, on_devices);
    const Wire own = rates->PointToPoint(place, plain), over = rates->PointToPoint(place, slow);
    EXPECT_DOUBLE_EQ(over.bytes_per_second, own.bytes_per_second / 10) << "a GPU has its share";
    EXPECT_DOUBLE_EQ(over.message_seconds, own.message_seconds - 1e-4 + 1e-3);
    EXPECT_EQ(rates->PointToPoint(place, fast).bytes_per_second, own.bytes_per_second);
    EXPECT_EQ(rates->PointToPoint(place, fast).message_seconds, own.message_seconds);
    EXPECT_GT(rates->AllReduceSeconds(place, slow, 1e9, 1),
              5 * rates->AllReduceSeconds(place, plain, 1e9, 1));
    EXPECT_GT(rates->AllToAllSeconds(place, slow, 1e9, 3),
              5 * rates->AllToAllSeconds(place, plain, 1e9, 3));
    EXPECT_GT(rates->HostGatherSeconds(place, slow, 1e9, 1),
              5 * rates->HostGatherSeconds(place, plain, 1e9, 1));
    EXPECT_EQ(rates->AllReduceSeconds(place, within, 1e9, 1),
              rates->AllReduceSeconds(place, {.ranks = 2, .on_worker = 2}, 1e9, 1));
  }
}

TEST(StepRates, ReturnsWhatWasMeasuredAndStaysBetweenNeighbours) {
  WorkerProfile worker = Worker("w", 4, kGiB);
  const ProcessorRates rates(worker, DType::kBF16);
  for (const GemmRate& rate : worker.gemm) {
    if (rate.precision != "bf16") continue;
    EXPECT_NEAR(rates.GemmFlopsPerSecond(rate.m, rate.n, rate.k, rate.threads),
                rate.flops_per_second, 0.01 * rate.flops_per_second);
  }
  const double low = rates.GemmFlopsPerSecond(64, 768, 768, 1);
  const double middle = rates.GemmFlopsPerSecond(128, 768, 768, 1);
  const double high = rates.GemmFlopsPerSecond(256, 768, 768, 1);
  EXPECT_LT(low, middle);
  EXPECT_LT(middle, high);
  EXPECT_GT(rates.GemmFlopsPerSecond(256, 768, 768, 4), high * 2);
}

TEST(StepRates, FallsBackToTheInstructionSet) {
  WorkerProfile worker;
  double previous = 0;
  for (const char* isa : {"baseline", "avx2", "avx512", "avx512_bf16", "amx"}) {
    worker.isa = isa;
    const double rate =
        ProcessorRates(worker, DType::kBF16).GemmFlopsPerSecond(1024, 1024, 1024, 2);
    EXPECT_GT(rate, previous) << isa;
    previous = rate;
  }
  EXPECT_GT(ProcessorRates(worker, DType::kF32).MemoryBytesPerSecond({1, 1}), 0);
  EXPECT_GT(ProcessorRates(worker, DType::kF32).LinkBytesPerSecond(true), 0);
}

}  // namespace
}  // namespace weft::planner
