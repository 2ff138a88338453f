#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

class BroughtRows;

/// The adapter of the table of tokens that model.peft asks for: what it registers, and how it
/// starts.
class TokenAdapter {
 public:
  /// At the embedding: registers it and puts it there, where there is one.
  void Put(const ModelSpec& model, const GraftSite& site, Grafts& grafts);

  /// Says how it starts. `tensor_ranks` have rows of the table each; null: all are here.
  void SetStarts(ParameterSet& parameters, Collective* tensor_ranks);

  /// There is a training, in this context. Rows of a table whose values are sharded start then.
  Status OnTraining(Context* context, ParameterSet& parameters);

 private:
  Status StartSharded(ParameterSet& parameters);

  int64_t factor_ = -1;         ///< Index of B of lora; -1: none.
  int64_t table_ = -1;          ///< That of the table,
  TrainedTableRows rows_ = {};  ///< and the rows of it that are trained, if any.
  std::shared_ptr<BroughtRows> brought_;
  Collective* tensor_ranks_ = nullptr;
  Context* training_ = nullptr;  ///< Once there is one.
  bool waits_ = false;           ///< The rows start with it.
};

/// The table [vocabulary, width] with what tensors of these values make of it, as
/// ProductsFactory::Merged.
std::vector<float> MergedTable(const ModelSpec& model, std::span<const float> table,
                               const std::vector<std::vector<float>>& tensors);

}  // namespace weft::engine
