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

/// Calls fn(item, scratch) for all items, each thread with its own `scratch_size` bytes.
/// kExhausted, naming `op`, when there is no memory for these.
template <class Item, class Fn>
Status RunAttentionItems(const char* op, const std::vector<Item>& items, int64_t scratch_size,
                         Fn&& fn) {
  if (items.empty()) return OkStatus();
  constexpr size_t kPage = 4096;
  size_t part = (static_cast<size_t>(scratch_size) + kPage - 1) / kPage * kPage;
  size_t size = part * static_cast<size_t>(Threads());
  std::unique_ptr<unsigned char, FreeDeleter> scratch(
      static_cast<unsigned char*>(std::aligned_alloc(kPage, size)));
  if (scratch == nullptr) {
    return ExhaustedError(std::string(op) + ": no memory for " + std::to_string(size) +
                          " bytes of scratch; hint: use fewer threads_per_rank");
  }
  ParallelForDynamic(static_cast<int64_t>(items.size()), [&](int64_t i) {
    fn(items[i], scratch.get() + part * static_cast<size_t>(omp_get_thread_num()));
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
