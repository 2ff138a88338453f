#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/model/precision.h"
#include "common/model/remat_schedule.h"
#include "common/spec/job_spec.h"
#include "kernels/step_value.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/added_logits.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/expert_parallel.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/pipeline_part.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// The part of the plan that says how a model computes.
struct ModelOptions {
  const PrecisionRecipe* precision = &kBf16Precision;
  bool with_gradients = true;  ///< False: evaluation and generation only.

  /// How blocks treat their saved tensors: block_memory_policy, recompute_segment and
  /// recompute_schedule of a plan.
  std::vector<std::string> block_memory_policy;
  int64_t recompute_segment = 1;
  std::vector<std::string> recompute_schedule = {};
  int64_t activation_bits = 0;  ///< Of what blocks keep; 0: as it is.
  /// Gets the operations on blocks as they are done (RematOperations), or none; outlives the model.
  std::vector<std::string>* block_operations = nullptr;

  TrainSpec train = {};  ///< What techniques of the model read of it, its precision aside.
  /// The growth that the training begins with (MaskedGrowthOf its job); none without training.
  std::optional<MaskedGrowth> growth = std::nullopt;
  /// Networks of fewer layers, or of smaller images, that are trained with it, or none; outlives
  /// the model.
  const ElasticNetwork* elastic = nullptr;

  /// Ranks that shard the updates of the parameters (ParameterSet::ShareAmong).
  int64_t update_ranks = 1;
  bool place_gradients = false;  ///< They have no memory of their own.
  bool shard_values = false;     ///< Ranks hold a part of each (ParameterSet::ShardValues).
  int64_t update_rank = 0;       ///< Which of them this is; read with shard_values.
  bool offload = false;  ///< Parameters are in the host memory pool (ParameterSet::Offload).
  std::vector<int64_t> device_updated_units = {};  ///< Except these (ParameterSet::KeepOnDevice).
  bool stream_parameters =
      false;  ///< And come to the device unit by unit (ParameterSet::StreamValues).
  bool parameters_in_file = false;   ///< And are in a file (ParameterSet::KeepInFile).
  bool offload_activations = false;  ///< What blocks keep waits in the host memory pool.

  /// Tensor-parallel ranks, or none; outlives the model.
  const TensorParallel* tensor = nullptr;

  /// Context-parallel ranks, or none; outlives the model.
  const ContextParallel* context = nullptr;

  /// Expert-parallel ranks, or none; outlives the model.
  const ExpertParallel* experts = nullptr;

  /// The part of the network that is here, where other ranks of a pipeline have the rest.
  std::optional<PipelinePart> pipeline = std::nullopt;

  /// The network whose logits a technique adds to those of the model, or none; outlives the model.
  const LogitsSource* logits_source = nullptr;

  /// The successive tokens of the vocabulary whose logits AddLogits of such a network adds, where
  /// tensor-parallel ranks add those of others; none: all.
  std::optional<Shard::Range> logits_part = std::nullopt;
};

/// The plan that the options make for the blocks of a model of this many blocks. kInvalid: a
/// schedule that is none.
Result<RematPlan> RematOf(const ModelOptions& options, int64_t layers);

/// A network that learns targets: tokens (the next one, or masked ones) or the class of a sequence
/// or image. Not thread-safe.
class Model {
 public:
  /// Makes the techniques that `spec` asks for.
  Model(const ModelSpec& spec, const ModelOptions& options);
  virtual ~Model() = default;

  /// The spec with the sizes that hold: vocab_size or classes resolved.
  virtual const ModelSpec& spec() const = 0;
  virtual const PrecisionRecipe& precision() const = 0;
  virtual ParameterSet& parameters() = 0;

  /// The techniques that are part of the model, in the order of their hooks.
  const std::vector<std::unique_ptr<Technique>>& techniques() const { return techniques_; }

  /// Lets the techniques put what they have at the sites of the network.
  Grafter grafter() const;
  /// Layers of the passes by the technique that says so, see Technique::LayersOfPasses.
  const LayersOfPass& layers_of_pass() const { return layers_of_pass_; }

  /// Makes the products of blocks, where a technique has others, or null: DenseProducts.
  ProductsFactory* block_products() const { return block_products_; }

  /// The same of linear layers outside the blocks.
  ProductsFactory* outer_products() const { return outer_products_; }

  /// The mask of the residual stream that a technique has, or null.
  const ColumnMask* stream_mask() const { return stream_mask_; }

  /// What a technique has the head add to its logits, or null.
  const AddedLogits* added_logits() const { return added_logits_; }

  /// Renews what is derived from the parameters: after Initialize, a load, and each update.
  Status Pack(Context& context) { return Pack(context, Repack::kAll); }
  virtual Status Pack(Context& context, Repack what) = 0;

  /// Adds the loss at all targets of `batch` to *total, which is in memory of the stream's device.
  /// On a differentiable tape, RunBackward then adds the gradient of gradient_scale * sum.
  virtual Status Loss(Context& context, Tape& tape, const TokenBatch& batch,
                      kernels::StepValue<float> gradient_scale, BatchLoss* total) const = 0;

  /// Runs one of the stages that are here (ModelOptions::pipeline) and returns what the next one
  /// reads. `x`, what the stage before returned, is empty for the first one of all; the last one
  /// returns nothing and adds the loss as above.
  virtual Result<Value> Stage(Context& context, Tape& tape, int64_t stage, Value x,
                              const TokenBatch& batch, kernels::StepValue<float> gradient_scale,
                              BatchLoss* total) const;

  /// [rows, columns] in the compute type; the first columns (vocab_size or classes) are the logits.
  /// A row for each token (causal_lm), for each of batch.target_rows or without these each token
  /// (masked_lm), for each sequence (classification).
  virtual Result<Tensor> Logits(Context& context, const TokenBatch& batch) const = 0;

 private:
  std::vector<std::unique_ptr<Technique>> techniques_;
  ProductsFactory* block_products_ = nullptr;  ///< Of the last of them that has one.
  ProductsFactory* outer_products_ = nullptr;  ///< Of one of them.
  const ColumnMask* stream_mask_ = nullptr;    ///< Likewise.
  const AddedLogits* added_logits_ = nullptr;  ///< Likewise.
  LayersOfPass layers_of_pass_;                ///< Likewise.
};

/// The model of `spec`, its parameters allocated and zero. kInvalid when sizes do not agree or
/// spec.freeze names no parameter, or when options.tensor cannot share it.
Result<std::unique_ptr<Model>> NewModel(Context& context, const ModelSpec& spec,
                                        const ModelOptions& options);

}  // namespace weft::engine
