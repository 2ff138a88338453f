#include "kernels/testing/bench_target.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/clock.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/testing/device_timer.h"
#include "kernels/testing/test_device.h"

namespace weft::kernels::testing {
namespace {

class CpuTarget : public BenchTarget {
 public:
  Device device() const override { return {}; }
  int64_t ceiling_product_size() const override { return 2048; }

  Result<std::vector<double>> Seconds(OpRun& run, double budget) override {
    WEFT_RETURN_IF_ERROR(run.run(Stream{}));
    std::vector<double> seconds;
    double spent = 0;
    while (seconds.size() < 3 || (spent < budget && seconds.size() < 1000)) {
      WEFT_RETURN_IF_ERROR(Scrub());
      const auto start = std::chrono::steady_clock::now();
      WEFT_RETURN_IF_ERROR(run.run(Stream{}));
      seconds.push_back(SecondsSince(start));
      spent += seconds.back();
    }
    return seconds;
  }

  Result<Copies> Copy(double budget) override {
    constexpr int64_t kCount = int64_t{1} << 25;
    OpRun run;
    TestTensor& x = run.Input(DType::kF32, {kCount});
    TestTensor& y = run.tensors.emplace_back(DType::kF32, Shape{kCount});
    run.run = [&](const Stream& stream) { return Cast(stream, {.x = x.view(), .y = y.view()}); };
    WEFT_ASSIGN_OR_RETURN(std::vector<double> seconds, Seconds(run, budget));
    return Copies{std::move(seconds), 2.0 * static_cast<double>(x.view().Bytes())};
  }

  Json Describe() const override {
    return {{"isa", cpu::IsaName(cpu::ActiveIsa())}, {"threads", cpu::Threads()}};
  }

 private:
  // Reads and writes more than the share of the last-level cache on most machines.
  Status Scrub() {
    return Scale(
        {}, {.x = TensorView(memory_.data(), DType::kF32, {static_cast<int64_t>(memory_.size())}),
             .factor = 1.0f});
  }

  std::vector<float> memory_ = std::vector<float>(size_t{16} << 20, 1.0f);
};

class CudaTarget : public BenchTarget {
 public:
  CudaTarget(std::unique_ptr<cuda::StreamState> state, std::unique_ptr<DeviceTimer> timer)
      : state_(std::move(state)), timer_(std::move(timer)) {}

  Device device() const override { return tensors_.device(); }
  int64_t ceiling_product_size() const override { return 8192; }

  Result<std::vector<double>> Seconds(OpRun& run, double budget) override {
    for (TestTensor& tensor : run.tensors) tensor.Reset();
    const auto enqueue = [&] { return run.run(state_->stream()); };
    WEFT_ASSIGN_OR_RETURN(std::vector<double> warm, timer_->Seconds(enqueue, 2));
    return timer_->Seconds(enqueue, Repeats(warm.back(), budget));
  }

  Result<Copies> Copy(double budget) override {
    constexpr size_t kBytes = size_t{2} << 30;
    WEFT_ASSIGN_OR_RETURN(std::vector<double> warm, timer_->CopySeconds(kBytes, 2));
    WEFT_ASSIGN_OR_RETURN(std::vector<double> seconds,
                          timer_->CopySeconds(kBytes, Repeats(warm.back(), budget)));
    return Copies{std::move(seconds), 2.0 * kBytes};
  }

  Json Describe() const override {
    const DeviceDescription& device = timer_->description();
    return {{"device", device.name},
            {"multiprocessors", device.multiprocessors},
            {"memory_bytes", device.memory_bytes},
            {"l2_bytes", device.l2_bytes},
            {"driver_cuda_version", device.driver_version},
            {"runtime_cuda_version", device.runtime_version}};
  }

 private:
  static int Repeats(double seconds, double budget) {
    return static_cast<int>(std::clamp(budget / std::max(seconds, 1e-6), 5.0, 100.0));
  }

  std::unique_ptr<cuda::StreamState> state_;
  std::unique_ptr<DeviceTimer> timer_;
  ScopedTestDevice tensors_{state_->stream().device, false};
};

}  // namespace

std::unique_ptr<BenchTarget> NewCpuTarget() {
  return std::make_unique<CpuTarget>();
}

Result<std::unique_ptr<BenchTarget>> NewCudaTarget(int index) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<cuda::StreamState> state, cuda::StreamState::Create(index));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<DeviceTimer> timer, DeviceTimer::Create(*state));
  return std::unique_ptr<BenchTarget>(
      std::make_unique<CudaTarget>(std::move(state), std::move(timer)));
}

}  // namespace weft::kernels::testing
