#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "worker/engine/autograd/parameter_gradients.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// A tensor of a forward pass and the tape node that will carry its gradient; no node when nothing
/// needs that gradient, because nothing that is trained comes before it.
struct Value {
  static constexpr int32_t kNoNode = -1;
  Tensor tensor;
  int32_t node = kNoNode;

  bool needs_gradient() const { return node != kNoNode; }
};

/// A tensor put aside until the backward pass. Operations know only Tape::Save and Restore, so what
/// happens in between is not their affair.
class SavedTensor {
 public:
  /// Makes what an operation wants of what was kept for it.
  using Remake = std::function<Result<Tensor>(Context& context, const Tensor& kept)>;

  SavedTensor() = default;

  /// The saved content. Called once, in the backward pass.
  Result<Tensor> Restore(Context& context) const {
    return remake_ ? remake_(context, tensor_) : Result<Tensor>(tensor_);
  }

 private:
  friend class Tape;
  explicit SavedTensor(Tensor tensor, Remake remake = {})
      : tensor_(std::move(tensor)), remake_(std::move(remake)) {}
  Tensor tensor_;
  Remake remake_;
};

/// Which columns of a column-sharded tensor are here; the default is all of them.
struct ColumnPart {
  int64_t whole = 0;   ///< Columns of each of its pieces, of all ranks.
  int64_t first = 0;   ///< The first of those that are here, of each piece.
  int64_t pieces = 1;  ///< Side by side.
  /// Rows are not those of the batch, but at most this many for each of its tokens, in an order
  /// that depends on the ranks; 0: they are.
  int64_t rows_of_token = 0;
};

/// Keeps tensors for the backward pass in another form than they have, or elsewhere.
class SavedTensorPolicy {
 public:
  virtual ~SavedTensorPolicy() = default;
  /// An approximation will do.
  virtual Result<SavedTensor> Keep(Context& context, const Tensor& tensor,
                                   const ColumnPart& part) = 0;
  /// The very same bits will come back.
  virtual SavedTensor KeepExactly(Tensor tensor);
};

/// Records what a forward pass does and plays it backwards. Not thread-safe.
class Tape {
 public:
  /// Takes the gradients of an operation's outputs off the tape, computes those of its inputs and
  /// puts them there, and adds those of parameters to parameters().
  using Backward = std::function<Status(Context& context, Tape& tape)>;

  /// Without `parameters` nothing is recorded: evaluation.
  explicit Tape(ParameterGradients* parameters) : Tape(parameters, Mode::kRecord) {}

  /// A backward pass over this forward pass will come, now recorded or later replayed.
  bool differentiable() const { return parameters_ != nullptr; }

  /// Operations may have to Record.
  bool recording() const {
    return differentiable() && (mode_ == Mode::kRecord || mode_ == Mode::kReplay);
  }

  /// The operation with result `y` is to Record.
  bool Records(const Value& y) const { return recording() && y.needs_gradient(); }

  /// Gradients of parameter `index` are wanted.
  bool Trains(int64_t index) const { return differentiable() && parameters_->trainable(index); }

  /// The component that results of operations count as.
  Component component() const {
    return differentiable() ? Component::kActivations : Component::kWorkspace;
  }

  /// The result of an operation. `needs_gradient` when one of its inputs does, or when it uses a
  /// parameter that is trained.
  Value NewValue(Tensor tensor, bool needs_gradient) {
    if (!differentiable() || !needs_gradient) return {std::move(tensor), Value::kNoNode};
    gradients_.emplace_back();
    return {std::move(tensor), static_cast<int32_t>(gradients_.size()) - 1};
  }

  /// An operation uses parameter `index` and will call parameters().Done(index) in its Backward.
  /// Operations call it whenever they run; replays are not counted twice.
  void UseParameter(int64_t index) {
    if (differentiable() && (mode_ == Mode::kRecord || mode_ == Mode::kPreview)) {
      parameters_->AddUse(index);
    }
  }

  ParameterGradients& parameters() const { return *parameters_; }

  /// Keeps `tensor` as it is.
  SavedTensor Save(Tensor tensor) const {
    return policy_ == nullptr ? AsItIs(std::move(tensor)) : policy_->KeepExactly(std::move(tensor));
  }
  /// The same without a policy.
  static SavedTensor AsItIs(Tensor tensor) { return SavedTensor(std::move(tensor)); }
  /// Keeps `kept`, whose content is recomputed when it is needed.
  static SavedTensor Save(Tensor kept, SavedTensor::Remake remake) {
    return SavedTensor(std::move(kept), std::move(remake));
  }

  /// Sets the policy that keeps tensors from now on, or none: they stay as they are. Outlives its
  /// use.
  void SetSavedTensorPolicy(SavedTensorPolicy* policy) { policy_ = policy; }
  SavedTensorPolicy* saved_tensor_policy() const { return policy_; }
  /// Keeps `tensor`, or an approximation, which will do; in a pass that is recorded.
  Result<SavedTensor> Keep(Context& context, const Tensor& tensor,
                           const ColumnPart& part = {}) const {
    return policy_ == nullptr ? Result<SavedTensor>(AsItIs(tensor))
                              : policy_->Keep(context, tensor, part);
  }

  /// Sets the factor of the gradient of operations in the midst of the network that have a loss of
  /// their own, a mean over the batch.
  void SetAuxiliaryScale(float scale) { auxiliary_scale_ = scale; }
  float auxiliary_scale() const { return auxiliary_scale_; }

  /// Where row 0 of the micro-batch is in the global batch: for what is drawn at random for rows.
  void SetFirstRow(int64_t first_row) { first_row_ = first_row; }
  int64_t first_row() const { return first_row_; }

  /// Appends an operation; only when Records its result. `name` is a string literal, for the
  /// profiler.
  void Record(std::string_view name, Backward backward) {
    entries_.push_back({name, std::move(backward)});
  }

  /// The gradient gathered for `node`, or an empty tensor when none arrived. Empties the node.
  Tensor TakeGradient(int32_t node) { return std::exchange(gradients_[node], Tensor()); }

  /// Adds to the gradient of `node`; nothing for kNoNode. Gradients may be shared between nodes:
  /// who wants to overwrite one checks unique().
  Status AddGradient(Context& context, int32_t node, Tensor gradient);

  /// Runs the recorded operations, last first, freeing each after it ran.
  Status RunBackward(Context& context);

  /// The gradient of `node` is about to be summed over ranks, as soon as it is known.
  void SumsGradient(int32_t node) { summed_.insert(node); }
  bool IsSummed(int32_t node) const { return summed_.contains(node); }
  /// Defers the part of an operation's Backward that the sum of its input's gradient need not wait
  /// for, so that it overlaps with that: it runs after the next operation at the latest.
  void DeferForOverlap(std::string_view name, Backward work) {
    overlapped_.push_back({name, std::move(work)});
  }
  /// Runs what was deferred so far: while something else is on its way.
  Status RunOverlapped(Context& context) { return Run(context, overlapped_); }

  /// From now on the gradients of weights wait until RunDeferred (Qi et al. 2023, arXiv
  /// 2401.10241).
  void DeferWeightGradients() { defers_ = true; }
  bool defers() const { return defers_; }
  /// Where the tape defers(): puts off the part of an operation's Backward that nobody waits for.
  void Defer(std::string_view name, Backward work) { deferred_.push_back({name, std::move(work)}); }
  /// Runs what was deferred, in the order of the backward pass, freeing each after it ran: the
  /// gradients are bit for bit what they would have been.
  Status RunDeferred(Context& context) { return Run(context, deferred_); }

  /// A tape for running a part of the forward pass without recording it, to be replayed later.
  Tape Preview() const {
    return Tape(parameters_, mode_ == Mode::kReplay ? Mode::kReplayPreview : Mode::kPreview,
                auxiliary_scale_, first_row_);
  }
  /// A tape for that replay.
  Tape Replay() const {
    Tape replay(parameters_, Mode::kReplay, auxiliary_scale_, first_row_);
    replay.defers_ = defers_;
    return replay;
  }
  /// The replay is over: what it deferred is deferred here.
  void TakeDeferred(Tape replay) {
    for (Entry& entry : replay.deferred_) deferred_.push_back(std::move(entry));
  }

 private:
  enum class Mode : uint8_t { kRecord, kPreview, kReplay, kReplayPreview };
  struct Entry {
    std::string_view name;
    Backward backward;
  };

  /// Runs the entries in their order, freeing each after it ran.
  Status Run(Context& context, std::deque<Entry>& entries);

  Tape(ParameterGradients* parameters, Mode mode, float auxiliary_scale = 0, int64_t first_row = 0)
      : parameters_(parameters),
        mode_(mode),
        auxiliary_scale_(auxiliary_scale),
        first_row_(first_row) {}

  ParameterGradients* parameters_;
  Mode mode_;
  float auxiliary_scale_;
  int64_t first_row_;
  SavedTensorPolicy* policy_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<Tensor> gradients_;  ///< By node.
  bool defers_ = false;
  std::deque<Entry> deferred_;
  std::unordered_set<int32_t> summed_;  ///< Nodes.
  std::deque<Entry> overlapped_;
};

inline SavedTensor SavedTensorPolicy::KeepExactly(Tensor tensor) {
  return Tape::AsItIs(std::move(tensor));
}

/// A part of a forward pass: the same inputs give bit for bit the same outputs each time.
using Segment = std::function<Result<std::vector<Value>>(Context& context, Tape& tape,
                                                         const std::vector<Value>& inputs)>;

/// Runs `segment` keeping only its inputs; the backward pass runs it again to get what it needs
/// (Chen et al. 2016, arXiv 1604.06174). Gradients are bit for bit those of running it directly
/// where the tape's policy gives back the same bits; otherwise those at what it gives back. What
/// the second run keeps does not pass that policy.
Result<std::vector<Value>> Recompute(Context& context, Tape& tape, Segment segment,
                                     const std::vector<Value>& inputs);

/// Results of a segment, and what stands for each in the backward pass of operations that read it.
struct RecomputedValues {
  std::vector<Value> values;
  std::vector<SavedTensor> saved;
};
/// The same for results that are not to be kept either: to restore one of `saved` runs the segment
/// again, once for all of them and for its own backward pass.
Result<RecomputedValues> RecomputeValues(Context& context, Tape& tape, Segment segment,
                                         const std::vector<Value>& inputs);

}  // namespace weft::engine
