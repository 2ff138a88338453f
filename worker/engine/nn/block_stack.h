#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/model/remat_schedule.h"
#include "worker/engine/nn/activation_offload.h"
#include "worker/engine/nn/layers_of_pass.h"
#include "worker/engine/nn/transformer_block.h"

namespace weft::engine {

struct BlockStackOptions {
  int64_t first = 0;   ///< Layer of the model that is the first here, where others are elsewhere.
  int64_t layers = 1;  ///< 0: what comes in goes on.
  /// Blocks with parameters of their own: of n layers layer l has block floor(l * distinct / n),
  /// and gradients are the sums over the layers (Lan et al. 2020, arXiv 1909.11942).
  int64_t distinct = 1;
  /// Or null: `layers`. Where they are fewer than the blocks, some blocks are left out.
  LayersOfPass layers_of_pass = {};
  int64_t network_blocks = 0;  ///< Of the model, where some are elsewhere; 0: those that are here.
  /// Options of distinct block `index`.
  std::function<TransformerBlockOptions(int64_t index)> block;
  /// What each of this many layers does with its saved tensors. Offloaded tensors wait in the host
  /// memory pool (activation_offload.h).
  std::function<RematPlan(int64_t layers)> remat;
  /// Bits of each saved value of a layer or a segment, except queries, keys and values; 0: not
  /// quantised. A single layer that is recomputed does not quantise, since its backward pass
  /// follows at once.
  int64_t activation_bits = 0;
  const ContextParallel* context = nullptr;  ///< Context-parallel ranks, or none.
  Grafter grafter = {};                      ///< Has grafts for the blocks, or none.
  /// Its backward pass comes right after its forward pass, so that parameters of the last layer,
  /// where they come and go, stay in between: not in a pipeline, with other micro-batches.
  bool parameters_stay = true;
  /// Receives the operations on layers, in order, as RematOperations names them; or none.
  std::vector<std::string>* operations = nullptr;
};

/// The blocks of a transformer, one after the other.
class BlockStack {
 public:
  BlockStack(ParameterSet* parameters, const BlockStackOptions& options,
             const ProductOptions& products);

  Status Pack(Context& context, Repack what);

  /// `caches`, one a layer, in generation only.
  Result<Residual> Forward(Context& context, Tape& tape, Value x, const TokenBatch& batch,
                           std::vector<KeyValueCache>* caches = nullptr) const;

 private:
  /// A pass over layers.
  struct Pass {
    const TokenBatch& batch;
    const RematPlan& remat;
    int64_t bits = 0;  ///< Of what is kept, or 0.
    std::vector<KeyValueCache>* caches = nullptr;
  };

  /// Runs and records a step of the forward pass, overlapped with its transfers.
  Result<Residual> RunWithTransfers(Context& context, Tape& tape, size_t index, Residual x,
                                    const Pass& pass,
                                    const std::shared_ptr<ActivationOffload>& offload) const;
  Result<Residual> RunStep(Context& context, Tape& tape, const RematStep& step, Residual x,
                           const Pass& pass) const;
  Result<Residual> RunLayer(Context& context, Tape& tape, const RematStep& step, const Residual& x,
                            const Pass& pass) const;
  Result<Residual> RunSegment(Context& context, Tape& tape, const RematStep& step,
                              const Residual& x, const Pass& pass) const;
  void Note(const std::string& operation, int64_t layer) const;

  const RematPlan& RematOf(int64_t layers) const;
  /// The block that layer `layer` of `layers` has, and the first layer that has block `block`.
  int64_t BlockOf(int64_t layer, int64_t layers) const {
    return layer * std::ssize(blocks_) / layers;
  }
  int64_t FirstLayerOf(int64_t block, int64_t layers) const {
    return (block * layers + std::ssize(blocks_) - 1) / std::ssize(blocks_);
  }

  const ParameterSet* parameters_;
  int64_t first_unit_;  ///< That of the first block; each has one.
  int64_t first_;
  int64_t layers_;
  LayersOfPass layers_of_pass_;
  std::function<RematPlan(int64_t layers)> new_remat_;
  mutable std::map<int64_t, RematPlan> remat_;  ///< By number of layers, once asked for.
  int64_t activation_bits_;
  const TensorParallel* tensor_;
  const ContextParallel* context_;
  bool parameters_stay_;
  std::vector<std::string>* operations_;
  std::vector<TransformerBlock> blocks_;
};

}  // namespace weft::engine
