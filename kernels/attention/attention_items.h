#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include <omp.h>

#include "common/status.h"
#include "kernels/attention/attention_simd.h"
#include "kernels/cpu/parallel.h"
#include "kernels/tensor_view.h"

namespace weft::kernels::cpu {

/// The kernels for elements of a type on this processor.
const AttentionTable& PickAttentionTable(DType dtype);

struct FreeDeleter {
  void operator()(unsigned char* memory) const { std::free(memory); }
};

using ScratchBytes = std::unique_ptr<unsigned char, FreeDeleter>;

constexpr size_t kScratchPage = 4096;
/// As much as a thread keeps from call to call: the system would clear its pages anew each time.
constexpr size_t kMostKeptScratch = size_t{4} << 20;

/// `size` bytes or more, at most kMostKeptScratch, which are the calling thread's until its next
/// call. Null: there is no memory for them.
unsigned char* KeptScratch(size_t size);

/// Calls fn(item, scratch) for all items, each thread with its own `scratch_size` bytes.
/// kExhausted, naming `op`, when there is no memory for these.
template <class Item, class Fn>
Status RunAttentionItems(const char* op, const std::vector<Item>& items, int64_t scratch_size,
                         Fn&& fn) {
  if (items.empty()) return OkStatus();
  const size_t part =
      (static_cast<size_t>(scratch_size) + kScratchPage - 1) / kScratchPage * kScratchPage;
  const size_t size = part * static_cast<size_t>(Threads());
  ScratchBytes large;
  if (size > kMostKeptScratch) {
    large.reset(static_cast<unsigned char*>(std::aligned_alloc(kScratchPage, size)));
  }
  unsigned char* const scratch = size > kMostKeptScratch ? large.get() : KeptScratch(size);
  if (scratch == nullptr) {
    return ExhaustedError(std::string(op) + ": no memory for " + std::to_string(size) +
                          " bytes of scratch; hint: use fewer threads_per_rank");
  }
  ParallelForDynamic(static_cast<int64_t>(items.size()), [&](int64_t i) {
    fn(items[i], scratch + part * static_cast<size_t>(omp_get_thread_num()));
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
