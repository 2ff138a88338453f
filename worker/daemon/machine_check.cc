#include "worker/daemon/machine_check.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "common/dtype.h"
#include "common/failpoint.h"
#include "common/rng.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/transfer.h"
#include "kernels/linear/linear.h"

namespace weft::daemon {
namespace {

using kernels::LinearForward;
using kernels::LinearForwardArgs;
using kernels::NewPackedWeight;
using Seconds = std::chrono::duration<double>;

/// On a processor: some milliseconds each.
constexpr int64_t kSide = 512;
constexpr int kRounds = 4;
/// On a GPU, where it fills all of its units.
constexpr int64_t kDeviceSide = 4096;
constexpr int kDeviceRounds = 20;

/// Well past the caches, and soon done.
constexpr size_t kMemoryBytes = size_t{128} << 20;

/// Products and sums of these are exact in bf16 and f32.
constexpr int kLargest = 4;

std::vector<float> WholeNumbers(int64_t count, uint64_t seed) {
  PhiloxStream random({.seed = seed});
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) {
    number = static_cast<float>(static_cast<int>(random.Uniform() * (2 * kLargest + 1)) - kLargest);
  }
  return numbers;
}

/// As broken hardware would.
void BreakIfAsked(std::string_view failpoint, void* number) {
  if (Failpoint(failpoint).ok()) return;
  uint32_t bits = 0;
  std::memcpy(&bits, number, sizeof(bits));
  bits ^= uint32_t{1} << 22;
  std::memcpy(number, &bits, sizeof(bits));
}

struct ProductResult {
  Status status;       ///< Of the product itself.
  int64_t wrong = -1;  ///< A row that is wrong.
  double flops_per_second = 0;
};

ProductResult MultiplyOn(int processor) {
  ProductResult result;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(processor), &one);
  // Where that is not allowed any more it runs on another one.
  (void)sched_setaffinity(0, sizeof(one), &one);
  kernels::cpu::SetThreads(1);  // of this thread alone
  const std::vector<float> x = WholeNumbers(kSide * kSide, 1);
  std::vector<float> w = WholeNumbers(kSide * kSide, 2), y(x.size());
  const auto multiply = [&]() -> Status {
    const Stream stream;
    WEFT_ASSIGN_OR_RETURN(auto weight, NewPackedWeight(Device{}, kSide, kSide, DType::kF32));
    WEFT_RETURN_IF_ERROR(weight->Pack(stream, {w.data(), DType::kF32, {kSide, kSide}}));
    LinearForwardArgs args;
    args.x = {const_cast<float*>(x.data()), DType::kF32, {kSide, kSide}};
    args.weight = weight.get();
    args.y = {y.data(), DType::kF32, {kSide, kSide}};
    for (int round = 0; round < kRounds && result.wrong < 0; ++round) {
      std::fill(y.begin(), y.end(), std::numeric_limits<float>::quiet_NaN());
      const auto begin = std::chrono::steady_clock::now();
      WEFT_RETURN_IF_ERROR(LinearForward(stream, args));
      const Seconds took = std::chrono::steady_clock::now() - begin;
      result.flops_per_second = std::max(
          result.flops_per_second, 2.0 * kSide * kSide * kSide / std::max(took.count(), 1e-9));
      BreakIfAsked("worker.check.product", &y[y.size() / 2]);
      result.wrong = WrongRow(x.data(), w.data(), y.data(), kSide, kSide, kSide);
    }
    return OkStatus();
  };
  result.status = multiply();
  return result;
}

/// On all processors at a time, each its own.
Status CheckProcessors(int64_t cores, MachineCheck& check) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
      if (CPU_ISSET(static_cast<size_t>(processor), &allowed)) processors.push_back(processor);
    }
  }
  if (std::ssize(processors) > cores) processors.resize(static_cast<size_t>(cores));
  std::vector<ProductResult> results(processors.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < processors.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = MultiplyOn(processors[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < results.size(); ++i) {
    WEFT_RETURN_IF_ERROR(results[i].status);
    check.flops_per_second += results[i].flops_per_second;
    if (results[i].wrong >= 0 && check.error.empty()) {
      check.error = "processor " + std::to_string(processors[i]) + " multiplied wrongly: row " +
                    std::to_string(results[i].wrong) +
                    " of a product of whole numbers is not what it must be";
    }
  }
  return OkStatus();
}

uint64_t PatternAt(size_t word, uint64_t flip) {
  return (word * 0x9E3779B97F4A7C15ull) ^ flip;  // no two words are alike
}

void CheckMemory(MachineCheck& check) {
  std::vector<uint64_t> words(kMemoryBytes / sizeof(uint64_t));
  const auto begin = std::chrono::steady_clock::now();
  for (const uint64_t flip : {uint64_t{0}, ~uint64_t{0}}) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = PatternAt(i, flip);
    BreakIfAsked("worker.check.memory", &words[words.size() / 3]);
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] == PatternAt(i, flip)) continue;
      check.error = "memory lost what was written to it: " + std::to_string(i * sizeof(uint64_t)) +
                    " bytes into a block of " + std::to_string(kMemoryBytes >> 20) + " MiB";
      return;
    }
  }
  const Seconds took = std::chrono::steady_clock::now() - begin;
  check.memory_bytes_per_second = 4.0 * kMemoryBytes / std::max(took.count(), 1e-9);
}

}  // namespace

int64_t WrongRow(const float* x, const float* w, const float* y, int64_t m, int64_t n, int64_t k) {
  const auto weight_of = [](int64_t column) { return 1 + column % 7; };
  std::vector<int64_t> sums(static_cast<size_t>(k));
  for (int64_t row = 0; row < n; ++row) {
    for (int64_t i = 0; i < k; ++i) {
      sums[static_cast<size_t>(i)] += weight_of(row) * std::lround(w[row * k + i]);
    }
  }
  for (int64_t row = 0; row < m; ++row) {
    int64_t wanted = 0;
    double found = 0;  // exact: whole numbers well below 2^53
    for (int64_t i = 0; i < k; ++i) {
      wanted += std::lround(x[row * k + i]) * sums[static_cast<size_t>(i)];
    }
    for (int64_t column = 0; column < n; ++column) {
      found += static_cast<double>(weight_of(column)) * static_cast<double>(y[row * n + column]);
    }
    if (found != static_cast<double>(wanted)) return row;  // so is one that is not a number
  }
  return -1;
}

Result<double> CheckDevice(int device, int64_t side, MachineCheck& check) {
  WEFT_ASSIGN_OR_RETURN(auto state, kernels::cuda::StreamState::Create(device));
  const Stream stream = state->stream();
  const int64_t numbers = side * side;
  const size_t bytes = static_cast<size_t>(numbers) * sizeof(float);
  const std::vector<float> x = WholeNumbers(numbers, 1), w = WholeNumbers(numbers, 2);
  std::vector<float> y(x.size());
  const auto copied = [&](const std::vector<float>& from) -> Result<kernels::cuda::DeviceMemory> {
    WEFT_ASSIGN_OR_RETURN(auto memory, kernels::cuda::DeviceMemory::Allocate(device, bytes));
    WEFT_RETURN_IF_ERROR(kernels::cuda::CopyToDevice(stream, memory.data(), from.data(), bytes));
    return memory;
  };
  WEFT_ASSIGN_OR_RETURN(const auto dx, copied(x));
  WEFT_ASSIGN_OR_RETURN(const auto dw, copied(w));
  WEFT_ASSIGN_OR_RETURN(const auto dy, copied(y));
  WEFT_ASSIGN_OR_RETURN(auto weight, NewPackedWeight(stream.device, side, side, DType::kF32));
  const auto view = [&](const kernels::cuda::DeviceMemory& memory) {
    return TensorView(memory.data(), DType::kF32, {side, side}, stream.device);
  };
  WEFT_RETURN_IF_ERROR(weight->Pack(stream, view(dw)));
  LinearForwardArgs args;
  args.x = view(dx);
  args.weight = weight.get();
  args.y = view(dy);
  WEFT_RETURN_IF_ERROR(LinearForward(stream, args));
  WEFT_RETURN_IF_ERROR(state->Synchronize());
  const auto begin = std::chrono::steady_clock::now();
  for (int round = 0; round < kDeviceRounds; ++round) {
    WEFT_RETURN_IF_ERROR(LinearForward(stream, args));
  }
  WEFT_RETURN_IF_ERROR(state->Synchronize());
  const Seconds took = std::chrono::steady_clock::now() - begin;
  WEFT_RETURN_IF_ERROR(kernels::cuda::CopyToHost(stream, y.data(), dy.data(), bytes));
  WEFT_RETURN_IF_ERROR(state->Synchronize());
  BreakIfAsked("worker.check.device", &y[y.size() / 2]);
  const int64_t wrong = WrongRow(x.data(), w.data(), y.data(), side, side, side);
  if (wrong >= 0 && check.error.empty()) {
    check.device = device;
    check.error = "it multiplied wrongly: row " + std::to_string(wrong) +
                  " of a product of whole numbers is not what it must be";
  }
  return 2.0 * std::pow(static_cast<double>(side), 3) * kDeviceRounds /
         std::max(took.count(), 1e-9);
}

Result<MachineCheck> CheckMachine(int64_t cores) {
  MachineCheck check;
  CheckMemory(check);
  if (!check.error.empty()) return check;
  WEFT_RETURN_IF_ERROR(CheckProcessors(cores, check));
  if (!check.error.empty()) return check;
  for (int device = 0; device < kernels::cuda::DeviceCount(); ++device) {
    WEFT_ASSIGN_OR_RETURN(const double rate, CheckDevice(device, kDeviceSide, check));
    if (!check.error.empty()) return check;
    check.flops_per_second = device == 0 ? rate : std::min(check.flops_per_second, rate);
  }
  return check;
}

}  // namespace weft::daemon
