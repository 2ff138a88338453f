#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/comm/collective.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/techniques/peft/lora_products.h"

namespace weft::engine {

/// Makes the products of the layers that model.peft names, around those of their weights.
class PeftProductsFactory : public ProductsFactory {
 public:
  /// `tensor_ranks`: tensor-parallel ranks, or none; outlives this.
  PeftProductsFactory(const ModelSpec& model, Collective* tensor_ranks)
      : model_(model), tensor_ranks_(tensor_ranks) {}

  /// Says who makes the products of the weights themselves; null: they are dense. Outlives this.
  /// Before Make.
  void SetBase(ProductsFactory* base) { base_ = base; }

  /// Where layers are about to register what AdaptersOf says.
  void SetParameters(const ParameterSet* parameters) { parameters_ = parameters; }

  /// What all layers share is of the first target of this rank.
  std::vector<ParameterInfo> AdaptersOf(const ParameterInfo& weight) const override;
  std::vector<float> Merged(const ParameterInfo& weight, std::span<const float> values,
                            const std::vector<std::vector<float>>& tensors) const override;
  std::vector<float> MergedBias(const ParameterInfo& weight, std::vector<float> bias,
                                const std::vector<std::vector<float>>& tensors) const override;

  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override;
  std::unique_ptr<WeightProducts> MakeAround(const LinearLayer& layer,
                                             const WeightMaker& weight) override;
  void SetStage(const std::vector<Shard::Range>& blocks, int64_t of) override {
    if (base_ != nullptr) base_->SetStage(blocks, of);
  }
  Status Allocate(Context& context) override {
    return base_ == nullptr ? OkStatus() : base_->Allocate(context);
  }
  Status StartPack(Context& context, Repack what) override {
    return base_ == nullptr ? OkStatus() : base_->StartPack(context, what);
  }

 private:
  /// Those of a DoRA that drops nothing.
  std::unique_ptr<WeightProducts> MakeDora(const LinearLayer& layer,
                                           const LoraProducts::OnesOfRank& ones,
                                           const WeightMaker& weight) const;
  /// The products of the weights alone; outside the blocks they are dense.
  std::unique_ptr<WeightProducts> MakeBase(const LinearLayer& layer) const;

  ModelSpec model_;
  ProductsFactory* base_ = nullptr;
  Collective* tensor_ranks_;
  const ParameterSet* parameters_ = nullptr;  ///< From SetParameters on.
  /// Ones by rank, number of inputs, and the first of them.
  std::map<std::array<int64_t, 3>, std::shared_ptr<RepeatedOnes>> ones_;
};

}  // namespace weft::engine
