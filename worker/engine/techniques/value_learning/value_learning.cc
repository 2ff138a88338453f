#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "worker/engine/nn/added_logits.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/value_learning/value_learning_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// The squares of this rank's logits in a step.
struct Squares {
  double sum = 0;
};

/// Inverse value learning (Lu et al. 2024, arXiv 2410.21027): the network learns what to add to the
/// logits of another, which stays as it is.
class ValueLearning : public Technique {
 public:
  ValueLearning(const ModelSpec& model, const ValueLearningSpec& spec, const LogitsSource& source)
      : vocabulary_(model.vocab_size), added_{.source = &source, .penalty = spec.logit_penalty} {}

  const AddedLogits* LogitsToAdd() override { return &added_; }

  // At first the sum is the other network's logits.
  Status OnParameters(ParameterSet& parameters) override {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].role == ParameterRole::kClassifier) parameters.SetStart(i, Initializer());
    }
    return OkStatus();
  }

  Status OnTraining(const TrainingParts& parts) override {
    if (added_.penalty == 0) return OkStatus();
    context_ = parts.context;
    sum_scalars_ = parts.sum_scalars;
    sum_over_replica_ = parts.sum_over_replica;
    replicas_of_classes_ = parts.plan->tensor_rows;
    WEFT_ASSIGN_OR_RETURN(squares_, ReadbackOf<Squares>::New(*context_));
    added_.squares = &squares_->device()->sum;
    return OkStatus();
  }

  Status BeforeStep(int64_t) override { return squares_ ? squares_->Clear(*context_) : OkStatus(); }

  Status OnGradients(Context&, int64_t) override {
    return squares_ ? squares_->Fetch(*context_) : OkStatus();
  }

  Status OnStepEnd(const FinishedStep& step) override {
    if (!squares_) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(const Squares* const squares, squares_->Wait());
    std::array<double, 1> sum = {squares->sum};
    WEFT_RETURN_IF_ERROR(sum_scalars_(sum));
    WEFT_RETURN_IF_ERROR(sum_over_replica_(sum));
    const double squares_of_all = sum[0] / static_cast<double>(replicas_of_classes_);
    const double numbers = static_cast<double>(step.targets) * static_cast<double>(vocabulary_);
    step.metrics->emplace(kLogitPenaltyMetric, added_.penalty * squares_of_all / numbers);
    return OkStatus();
  }

 private:
  int64_t vocabulary_;
  AddedLogits added_;
  Context* context_ = nullptr;
  std::function<Status(std::span<double>)> sum_scalars_, sum_over_replica_;
  int64_t replicas_of_classes_ = 1;  ///< Tensor-parallel ranks that have the same logits.
  std::optional<ReadbackOf<Squares>> squares_;  ///< None without a penalty.
};

}  // namespace

std::unique_ptr<Technique> NewValueLearning(const TechniqueInputs& inputs) {
  if (inputs.logits_source == nullptr) return nullptr;
  return std::make_unique<ValueLearning>(inputs.model, inputs.train.value_learning,
                                         *inputs.logits_source);
}

}  // namespace weft::engine
