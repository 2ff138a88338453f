#include "common/model/compressed_activations.h"

#include <algorithm>

#include "common/model/memory_model.h"

namespace weft {
namespace {

using Kind = RematStep::Kind;

// Calls `visit` for each step of the plan and of its replays, with the number of replays that it is
// in, where what it keeps is in bits or where it is not.
template <class Visit>
void ForEachStep(const RematPlan& plan, bool compressed, int64_t depth, const Visit& visit) {
  for (const RematStep& step : plan) {
    visit(step, compressed, depth);
    if (step.kind == Kind::kSegment) {
      ForEachStep(step.replay, compressed && step.count > 1, depth + 1, visit);
    }
  }
}

}  // namespace

CompressedBlocks CompressedBlocksOf(const RematPlan& plan) {
  CompressedBlocks found;
  ForEachStep(plan, true, 0, [&](const RematStep& step, bool compressed, int64_t) {
    if (!compressed) return;
    ++(step.kind == Kind::kSegment     ? found.inputs
       : step.kind == Kind::kAttention ? found.attentions
                                       : found.blocks);
  });
  return found;
}

RestoredTensors RestoredTensorsOf(const RematPlan& plan) {
  RestoredTensors found;
  ForEachStep(plan, true, 0, [&](const RematStep& step, bool compressed, int64_t depth) {
    if (step.kind == Kind::kSegment) return;
    found.in_block = found.in_block || compressed;
    int64_t& inputs = compressed ? found.inputs : found.alone;
    inputs = std::max(inputs, depth);
  });
  return found;
}

int64_t CompressedBytes(const RematPlan& plan, const ModelShape& shape, int64_t tokens,
                        int64_t element_bytes, int64_t bits) {
  const CompressedBlocks compressed = CompressedBlocksOf(plan);
  const auto bytes = [&](int64_t elements_per_token) {
    const int64_t elements = tokens * elements_per_token;
    return elements * element_bytes + CodeBytes(elements, bits);
  };
  int64_t sum = compressed.inputs * bytes(shape.spec.width / shape.StreamRanks());
  for (const SavedTensorSlot& slot : BlockSavedTensors(shape)) {
    if (!slot.compressible) continue;
    const int64_t times = compressed.blocks + (slot.in_attention ? 0 : compressed.attentions);
    sum += times * bytes(slot.elements_per_token);
  }
  return sum;
}

}  // namespace weft
