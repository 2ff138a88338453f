#include "worker/engine/train/replay_check.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "common/failpoint.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/tensor/wrong_bit.h"

namespace weft::engine {
namespace {

uint64_t Combine(uint64_t hash, std::span<const std::byte> bytes) {
  const uint64_t both[] = {hash, Hash64(bytes)};
  return Hash64(std::as_bytes(std::span(both)));
}

template <class T>
uint64_t Combine(uint64_t hash, const T& value) {
  return Combine(hash, std::as_bytes(std::span(&value, 1)));
}

}  // namespace

ReplayCheck::ReplayCheck(const TrainerParts& parts)
    : parts_(parts),
      ranks_(parts.reducer != nullptr ? parts.reducer->world_size() : 1),
      places_(parts.reducer != nullptr && parts.reducer->places_gradients()) {
  const ParameterSet& parameters = parts.model->parameters();
  bool joins = false;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const bool trains = parameters[i].differentiated();
    if (trains) {
      const int64_t begin = parameters.GradientOffset(i);
      if (!(parameters[i].stacked && joins)) stacks_.push_back({.range = {begin, begin}});
      stacks_.back().range.end = begin + parameters[i].StoredElements();
    }
    stack_of_.push_back(stacks_.empty() ? 0 : stacks_.size() - 1);
    joins = trains;
  }
}

Result<TensorView> ReplayCheck::PlaceGradient(int64_t index) {
  ParameterSet& parameters = parts_.model->parameters();
  Stack& stack = stacks_[stack_of_[static_cast<size_t>(index)]];
  if (places_ && !stack.memory) {
    WEFT_ASSIGN_OR_RETURN(stack.memory, Tensor::New(*parts_.context, Component::kGradients,
                                                    DType::kF32, {stack.range.size()}));
    parameters.PlaceGradients(stack.range, stack.memory.As<float>());
  }
  return parameters.gradient(index);
}

Status ReplayCheck::OnGradient(int64_t index, uint64_t& hash) {
  ParameterSet& parameters = parts_.model->parameters();
  const TensorView gradient = parameters.gradient(index);
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(parts_.context->stream, gradient));
  if (!Failpoint("trainer.replay.gradient").ok()) FlipBit(copy.view());
  hash = Combine(hash, index);
  hash = Combine(hash,
                 std::span(static_cast<const std::byte*>(copy.view().data), copy.view().Bytes()));
  Stack& stack = stacks_[stack_of_[static_cast<size_t>(index)]];
  if (--stack.missing > 0 || !stack.memory) return OkStatus();
  stack.memory = {};
  parameters.PlaceGradients(stack.range, nullptr);
  return OkStatus();
}

Result<uint64_t> ReplayCheck::HashOf(const TokenBatch& batch, float gradient_scale) {
  Context& context = *parts_.context;
  const ParameterSet& parameters = parts_.model->parameters();
  std::vector<bool> differentiated;
  for (Stack& stack : stacks_) stack.missing = 0;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    differentiated.push_back(parameters[i].differentiated());
    if (differentiated.back()) ++stacks_[stack_of_[static_cast<size_t>(i)]].missing;
  }
  uint64_t hash = 0;
  ParameterGradients gradients(differentiated,
                               [this](int64_t index) { return PlaceGradient(index); });
  gradients.StartStep();
  gradients.StartPass([&](int64_t index) { return OnGradient(index, hash); });
  WEFT_ASSIGN_OR_RETURN(auto loss, ReadbackOf<BatchLoss>::New(context));
  WEFT_RETURN_IF_ERROR(loss.Clear(context));
  Tape tape(&gradients);
  tape.SetFirstRow(batch.first_token);
  WEFT_RETURN_IF_ERROR(parts_.model->Loss(context, tape, batch, gradient_scale, loss.device()));
  WEFT_RETURN_IF_ERROR(tape.RunBackward(context));
  WEFT_RETURN_IF_ERROR(gradients.FinishPass(context));
  WEFT_RETURN_IF_ERROR(loss.Fetch(context));
  WEFT_ASSIGN_OR_RETURN(const BatchLoss* found, loss.Wait());
  return Combine(hash, found->sum);
}

Result<ReplayCheck::Hashes> ReplayCheck::Compute(const TokenBatch& own, const TokenBatch& other,
                                                 float gradient_scale) {
  WEFT_ASSIGN_OR_RETURN(const uint64_t hash, HashOf(own, gradient_scale));
  WEFT_ASSIGN_OR_RETURN(const uint64_t hash_of_other, HashOf(other, gradient_scale));
  // Each rank has slots, which are zero on the others. Halves of a hash are exact in f64.
  constexpr size_t kSlots = 4;
  std::vector<double> slots(kSlots * static_cast<size_t>(ranks_));
  const auto first = kSlots * static_cast<size_t>(parts_.rank);
  slots[first] = static_cast<double>(hash >> 32);
  slots[first + 1] = static_cast<double>(hash & 0xffffffff);
  slots[first + 2] = static_cast<double>(hash_of_other >> 32);
  slots[first + 3] = static_cast<double>(hash_of_other & 0xffffffff);
  if (parts_.reducer != nullptr) WEFT_RETURN_IF_ERROR(parts_.reducer->SumScalars(slots));
  const auto hash_at = [&](size_t slot) {
    return static_cast<uint64_t>(slots[slot]) << 32 | static_cast<uint64_t>(slots[slot + 1]);
  };
  Hashes hashes;
  for (size_t slot = 0; slot < slots.size(); slot += kSlots) {
    hashes.own.push_back(hash_at(slot));
    hashes.other.push_back(hash_at(slot + 2));
  }
  return hashes;
}

Result<std::optional<WrongBits>> ReplayCheck::Run(const TokenBatch& own, const TokenBatch& other,
                                                  float gradient_scale) {
  WEFT_ASSIGN_OR_RETURN(const Hashes first, Compute(own, other, gradient_scale));
  bool same = true;
  for (size_t rank = 0; rank < first.own.size(); ++rank) {
    same &= first.other[rank] == first.own[(rank + 1) % first.own.size()];
  }
  if (same) return std::optional<WrongBits>();
  WEFT_ASSIGN_OR_RETURN(const Hashes again, Compute(own, other, gradient_scale));
  return std::optional(Judge(first, again));
}

WrongBits ReplayCheck::Judge(const Hashes& first, const Hashes& again) const {
  const size_t ranks = first.own.size();
  std::vector<int64_t> unsteady, disputed;
  std::vector<int64_t> pairs;
  const auto differs = [&](size_t rank) {
    return first.other[rank] != first.own[(rank + 1) % ranks];
  };
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto own = static_cast<int64_t>(rank);
    if (first.own[rank] != again.own[rank] || first.other[rank] != again.other[rank]) {
      unsteady.push_back(own);
    }
    const bool with_next = differs(rank), with_last = differs((rank + ranks - 1) % ranks);
    if (with_next && with_last) disputed.push_back(own);
    if (with_next || with_last) pairs.push_back(own);
  }
  WrongBits found{.step = parts_.context->step, .rank = std::nullopt, .suspects = pairs};
  if (ranks == 1) found.rank = 0;
  if (unsteady.size() == 1) found.rank = unsteady.front();
  if (unsteady.empty() && ranks > 2 && disputed.size() == 1) found.rank = disputed.front();
  if (found.rank) found.suspects = {*found.rank};
  return found;
}

}  // namespace weft::engine
