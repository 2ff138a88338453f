#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace weft::kernels::cpu {

/// A stretch of one tensor of a list.
struct Block {
  int64_t tensor;
  int64_t begin;
  int64_t count;
};

/// Cuts tensors (anything with a `count`) into blocks of `size` elements, the last of each tensor
/// shorter: the unit of work of operations over many tensors, the same for any thread count.
template <class Tensor>
std::vector<Block> SplitIntoBlocks(std::span<const Tensor> tensors, int64_t size) {
  std::vector<Block> blocks;
  for (size_t t = 0; t < tensors.size(); ++t) {
    for (int64_t begin = 0; begin < tensors[t].count; begin += size) {
      blocks.push_back({static_cast<int64_t>(t), begin, std::min(size, tensors[t].count - begin)});
    }
  }
  return blocks;
}

}  // namespace weft::kernels::cpu
