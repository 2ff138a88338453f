#pragma once

#include <cstdint>
#include <vector>

#include "common/model/gradient_bytes.h"
#include "common/model/precision.h"
#include "common/model/streamed_units.h"
#include "common/spec/model_spec.h"
#include "common/spec/train_spec.h"

namespace weft {

/// Traffic of sharded parameters (ZeRO stage 3). Gathering and reducing the payload n over g ranks
/// sends n (g-1)/g.
struct ShardedTraffic {
  int64_t forward_payload = 0;   ///< Gathered in the forward pass of a micro-batch ...
  int64_t backward_payload = 0;  ///< ... and in its backward pass: all but the last block again.
  int64_t forward_gathers = 0;   ///< Collectives of these.
  int64_t backward_gathers = 0;
  int64_t reduced_payload = 0;  ///< Gradients that are reduced in a micro-batch.
  int64_t reductions = 0;       ///< Collectives of these.
  int64_t after_payload = 0;    ///< Gathered once a step: after its passes (TrainedPasses), or for
                                ///< all of them (ParameterInfo::of_all_blocks).
  int64_t after_gathers = 0;    ///< Collectives of these.
};

/// Bytes of a rank with sharded parameters (zero_stage 3). Each rank holds an equal part of every
/// flat parameter (the matrices, the words of quantised ones, the vectors, and the sharded experts
/// of a block, the embeddings or the head). Whole ones are gathered for computation.
struct ShardedParameters : ShardedTraffic {
  int64_t held = 0;      ///< Parts of values, and all of what is replicated.
  int64_t gathered = 0;  ///< Whole values, at most: of a unit and of the one that is next.
  int64_t gathered_from_host = 0;  ///< The same with the parts of that one and the one behind it,
                                   ///< where these come from the host tier.
  /// Bytes of a rank's parts that come from there in the passes of a micro-batch.
  struct OverLink {
    int64_t first = 0;  ///< Of `forward`, those of the first unit.
    int64_t forward = 0;
    int64_t backward = 0;
  } link = {};
  int64_t packed = 0;           ///< Numbers of matrices that have a copy for products at once ...
  int64_t packed_in_tiles = 0;  ///< ... of those that are in tiles (ParameterInfo::in_tiles) ...
  PackedPadding packed_padding = {};  ///< ... and of those copies.
  int64_t gradients = 0;              ///< Parts of gradients.
  OpenGradients open_gradients = {};  ///< Whole gradients: of two units in flight.
  /// The bytes where the parts are in files (worker/engine/nn/parameter_file.h).
  struct Filed {
    FiledValues values;
    FiledValues gradients;  ///< `host`: of two successive units.
    int64_t numbers = 0;    ///< Gradients of the largest unit.
  } filed = {};
  ShardedTraffic experts = {};  ///< Over the ranks that hold the same experts.
};

/// The flat parameters of a model, for any number of shard ranks; found once.
class FlatParameters {
 public:
  /// `model` with vocab_size resolved; for one of `tensor` tensor-parallel ranks, in a grid of
  /// `rows`, or one of `expert_ranks` expert-parallel ranks. `gathered` is the type in which
  /// matrices are gathered where that is smaller than the one they are stored in
  /// (GatheredMatrices). `train`: what techniques read of it (TrainedPasses, GathersAsHeld).
  FlatParameters(const ModelSpec& model, const PrecisionRecipe& precision, DType gathered,
                 int64_t tensor = 1, int64_t rows = 1, int64_t expert_ranks = 1,
                 const TrainSpec& train = {});

  /// Each of the `ranks` has its part.
  ShardedParameters Among(int64_t ranks) const;

 private:
  /// A flat parameter as the engine has it (ParameterSet::FlatParameter).
  struct FlatParameter {
    int64_t first_unit = 0;
    int64_t last_unit = 0;
    bool rounded = false;  ///< Gathered in `gathered`: matrices in numbers, not words.
    DType type = DType::kF32;
    bool looked_up = false;
    bool trained = false;
    bool of_experts = false;     ///< Of expert-parallel ranks.
    bool of_all_blocks = false;  ///< Then it is not among those of a unit.
    bool added_to_last = false;  ///< Its gradient is open until the backward pass ends: blocks add
                                 ///< to it, or the classifier first and the embedding last.
    int64_t elements = 0;
  };
  /// What the functions of Among() share.
  struct Sharing;

  int64_t Held(const FlatParameter& flat) const;
  int64_t Transfers(const FlatParameter& flat, int64_t unit) const;
  /// Bytes of whole values of a flat parameter, where `unit` computes with them.
  int64_t Brought(const Sharing& sharing, size_t index, int64_t unit, bool backward) const;
  /// Bytes of what this rank alone has, where that resides on the host.
  int64_t Alone(const Sharing& sharing, size_t index, int64_t unit, bool backward) const;
  /// Bytes of all flat parameters of the unit.
  int64_t Bytes(const Sharing& sharing, int64_t unit, bool backward) const;
  int64_t AloneBytes(const Sharing& sharing, int64_t unit, bool backward) const;
  /// This rank's part of what is brought from the host.
  int64_t PartBytes(const Sharing& sharing, int64_t unit, bool backward) const;
  /// Enters what gathering these takes.
  void CountGathers(const Sharing& sharing, int64_t unit, bool backward,
                    ShardedParameters& result) const;
  void Gather(const Sharing& sharing, ShardedParameters& result) const;
  void GatherTrained(const Sharing& sharing, ShardedParameters& result) const;
  void GatherForAllBlocks(const Sharing& sharing, ShardedParameters& result) const;
  void OpenGradients(const Sharing& sharing, ShardedParameters& result) const;
  void CutFiles(const Sharing& sharing, ShardedParameters& result) const;

  const DType gathered_;
  const int64_t expert_ranks_;
  const int64_t last_;           ///< Unit: the head.
  const double trained_passes_;  ///< TrainedPasses()
  std::vector<FlatParameter> flat_parameters_;
  std::vector<std::vector<size_t>> of_unit_;  ///< Flat parameters by unit.
  int64_t first_differentiated_ = INT64_MAX;
  int64_t replicated_bytes_ = 0;  ///< That each rank has all of (ParameterInfo::replicated).
  int64_t packed_ = 0;
  int64_t packed_in_tiles_ = 0;
  PackedPadding packed_padding_;
};

/// The type in which ranks gather the matrices that products read in `products`. With
/// train.deterministic mesh processors get them as they are stored: some have no instructions for
/// bf16, and a rank that has all of a matrix does not round it there.
inline DType GatheredMatrices(DType products, bool mesh_deterministic, bool on_devices) {
  return mesh_deterministic && !on_devices ? DType::kF32 : products;
}

/// FlatParameters::Among().
ShardedParameters ShardParameters(const ModelSpec& model, const PrecisionRecipe& precision,
                                  DType gathered, int64_t ranks, int64_t tensor = 1,
                                  int64_t rows = 1, int64_t expert_ranks = 1,
                                  const TrainSpec& train = {});

}  // namespace weft
