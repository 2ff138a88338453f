#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/four_bit.h"
#include "common/model/parameter_info.h"
#include "common/status.h"
#include "kernels/tensor_view.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

enum class Distribution : uint8_t {
  kNormal,
  kTruncatedNormal,  ///< Normal, but drawn again where it is more than two deviations away.
  kUniform,
};

/// How a parameter starts: drawn around `mean` with this deviation (of a truncated normal, that
/// before the cut).
struct Initializer {
  double mean = 0;
  double deviation = 0;
  Distribution distribution = Distribution::kNormal;
  /// The last `tail_rows` rows are drawn with tail_factor times the deviation.
  int64_t tail_rows = 0;
  double tail_factor = 1;
  /// The parameter whose random numbers it is drawn with; "": its own.
  std::string drawn_as = {};
};

/// One tensor of a model.
struct Parameter : ParameterAttributes {
  std::string name;
  Shape shape;                 ///< Of the part here.
  Shard shard;                 ///< What of the logical tensor that is.
  bool sees_all_rows = false;  ///< See ParameterList::Partial, as the next.
  bool partial_gradient = false;
  bool shared_by_stages = false;
  bool of_shared_expert = false;  ///< See ParameterList::SetExpertRank.
  bool counted = true;            ///< Not by another stage of a pipeline.
  int64_t padded_rows = 0;        ///< Rows of storage, >= shape[0]; the rest stays zero.
  Initializer initializer;
  double learning_rate_scale = 1;   ///< Of the parametrisation; optimizer groups come on top.
  bool decay_follows_rate = false;  ///< See ParameterList::SetDecayFollowsRate.
  double peak_rate_scale = 1;       ///< See ParameterList::SetPeakRate.
  bool stacked = false;             ///< Lies right under the parameter before it.
  int64_t first_source = -1;        ///< See ParameterList::Derive: of `sources` successive ones.
  int64_t sources = 0;
  int64_t source_of = -1;   ///< Of a source: the derived parameter.
  int64_t bias_of = -1;     ///< See ParameterList::SetBiasOf.
  std::string in_place_of;  ///< See ParameterOptions, as the next two.
  std::string adapter_of;
  Shape weight_shape;
  DType dtype = DType::kF32;       ///< Of its value, from SetTypes on; not of quantized_words.
  int64_t unit = 0;                ///< See ParameterList::StartUnit.
  FourBitPart four_bit_part = {};  ///< Of a shard that is quantised.
  bool of_all_blocks = false;      ///< See ParameterList::SetOfAllBlocks.
  bool read_directly = false;      ///< See ParameterList::SetReadDirectly.
  bool gathered_as_held = false;   ///< See ParameterList::SetGatheredAsHeld.

  bool trainable() const { return !frozen; }

  /// Numbers of storage; of one that is quantised its words.
  int64_t StoredElements() const {
    return quantized_words > 0 ? quantized_words : shape.Elements() / shape[0] * padded_rows;
  }
  /// Their type, from SetTypes on.
  DType stored_type() const { return quantized_words > 0 ? DType::kI32 : dtype; }
  /// Bytes of storage, likewise.
  size_t StoredBytes() const {
    return static_cast<size_t>(StoredElements()) * DTypeSize(stored_type());
  }

  /// Its value is computed from its sources, which are trained in its place.
  bool derived() const { return sources > 0; }

  /// The backward pass computes its gradient; that of a source follows from what is derived.
  bool differentiated() const { return trainable() && source_of < 0; }

  /// The optimizer changes it.
  bool updated() const { return trainable() && !derived(); }

  Shape logical_shape() const { return shard.LogicalShape(shape); }

  /// The shape of the weight that it is, or is in place of: what its network is scaled by.
  Shape layer_shape() const { return in_place_of.empty() ? logical_shape() : weight_shape; }

  /// Operations read it as it is; they read packed copies of others.
  bool read_unpacked() const { return shape.rank < 2 || read_directly; }

  /// Weight decay applies: matrices, not biases and norms.
  bool decay() const { return shape.rank >= 2; }
};

/// What else is said of a parameter when it is registered.
struct ParameterOptions {
  bool bias = false;        ///< ParameterAttributes::bias
  int64_t padded_rows = 0;  ///< Of storage, when more than shape[0].
  Shard shard = {};         ///< Which part of the logical tensor it is.
  /// The weight, of this shape, that its layer has this tensor for (ProductsFactory); none: "".
  std::string in_place_of = {};
  Shape weight_shape = {};
  std::vector<int64_t> parts = {};  ///< ParameterAttributes::parts
  bool read_directly = false;       ///< See ParameterList::SetReadDirectly.
  bool read_backward = false;       ///< ParameterAttributes::read_backward
  /// The weight that its layer has this tensor besides, and which side of it this shares.
  std::string adapter_of = {};
  AdapterSide adapter = AdapterSide::kNone;
  int64_t expert = -1;   ///< ParameterAttributes::expert
  int64_t row_part = 0;  ///< ParameterAttributes::row_part, of
  int64_t row_parts = 1;
  bool replicated = false;      ///< ParameterAttributes::replicated: where values are sharded,
                                ///< nothing brings it.
  bool starts_at_zero = false;  ///< ParameterAttributes::starts_at_zero
};

/// The parameters of a model, in order of registration: what each is, wherever it resides
/// (ParameterSet has their memory). All is said before SetTypes. Sources of derived parameters come
/// after all other parameters.
class ParameterList {
 public:
  /// Registers a parameter and returns its index. Its block is that of StartUnit.
  int64_t Register(std::string name, Shape shape, ParameterRole role,
                   ParameterOptions options = {});

  /// One of several parameters that are used as one matrix.
  struct StackedPart {
    std::string name;
    int64_t rows = 0;
    ParameterRole role = ParameterRole::kMlpUp;
    Shard shard = {};     ///< Which rows these are.
    bool bias = false;    ///< ParameterAttributes::bias
    int64_t expert = -1;  ///< ParameterAttributes::expert
  };
  /// Registers parameters that differ in their number of rows, one under the other without a gap,
  /// and returns the index of the first. `row` is the shape of a row: {} for vectors.
  int64_t RegisterStack(const std::vector<StackedPart>& parts, const Shape& row);

  /// Says that some parameters are tensor-parallel shards, those of rank `rank`; the others
  /// are replicated. `shards_rows`: sequence parallelism partitions the rows of a batch between
  /// the sharded layers.
  void SetTensorRank(int64_t rank, bool shards_rows) {
    tensor_rank_ = rank;
    shards_rows_ = shards_rows;
  }
  bool sharded() const { return tensor_rank_ >= 0; }

  /// Whether this rank counts `index` in sums over the tensor-, pipeline- and expert-parallel
  /// ranks, so that each logical number counts once.
  bool Counts(int64_t index) const {
    return CountsPart(index) && (expert_rank_ == 0 || parameters_[index].of_shared_expert);
  }
  /// Whether this rank counts its part of `index` with ZeRO, whose shard group includes the
  /// expert-parallel ranks: each of these has other parts.
  bool CountsPart(int64_t index) const {
    const Parameter& parameter = parameters_[index];
    if (!parameter.counted || !parameter.shard.first) return false;
    return tensor_rank_ <= 0 || !parameter.shard.whole();
  }

  /// Whether the gradient of the replicated parameter `index` is a partial gradient, to be summed
  /// over the tensor-parallel ranks: each sees some rows of a batch only, or partial sums.
  bool Partial(int64_t index) const {
    const Parameter& parameter = parameters_[index];
    if (parameter.partial_gradient) return true;
    return shards_rows_ && parameter.shard.whole() && !parameter.sees_all_rows;
  }
  /// Says that each rank computes the gradient of `index` over all rows.
  void SetSeesAllRows(int64_t index) { parameters_[index].sees_all_rows = true; }
  /// Says that each tensor-parallel rank computes a partial gradient of `index`.
  void SetPartialGradient(int64_t index) { parameters_[index].partial_gradient = true; }

  /// Says that other ranks have other parameters: these are those of one stage of a pipeline.
  void SetStage() { of_stage_ = true; }
  bool of_stage() const { return of_stage_; }
  /// Says that another stage has `index`, too, the first or the last one or, of SetOfAllBlocks,
  /// each of them: its gradient is the sum of theirs. `counts`: this one counts it, in sums over
  /// the stages, and saves it.
  void SetSharedByStages(int64_t index, bool counts) {
    parameters_[index].shared_by_stages = true;
    parameters_[index].counted = counts;
  }

  /// Says what the parameters of the whole network are called, sources of some of them too, and how
  /// many distinct blocks it has, where other ranks have some. Before Freeze.
  void SetNetwork(std::vector<std::string> names, int64_t blocks) {
    names_ = std::move(names);
    blocks_ = blocks;
  }
  /// Names of SetNetwork; without it, those of the parameters here and of the weights that some are
  /// in place of.
  std::vector<std::string> Names() const;
  /// Distinct blocks of the whole network (SetNetwork).
  int64_t blocks() const { return blocks_; }

  /// Says that this is rank `rank` of `ranks` expert-parallel ranks. Each has its own experts; the
  /// other parameters are replicated. All are registered.
  void SetExpertRank(int64_t rank, int64_t ranks);
  int64_t expert_ranks() const { return expert_ranks_; }

  /// How `index` starts (zero until this is said) and how fast it learns. Before Initialize.
  void SetStart(int64_t index, const Initializer& initializer, double learning_rate_scale = 1);

  /// Says that weight decay that is decoupled from the gradient follows the learning rate scale of
  /// `index`, too.
  void SetDecayFollowsRate(int64_t index) { parameters_[index].decay_follows_rate = true; }

  /// Says that the peak of the learning rate of `index` is `scale` times that of the job. Weight
  /// decay that is decoupled from the gradient follows the rate.
  void SetPeakRate(int64_t index, double scale) { parameters_[index].peak_rate_scale = scale; }

  /// Says that `index` is of a graft, with a role of its sub-layer: a tensor that files of the
  /// network do not have.
  void SetGrafted(int64_t index, ParameterRole role) {
    parameters_[index].role = role;
    parameters_[index].adapter = AdapterSide::kNeither;
  }

  /// Says that a parameter is several matrices, one under the other, with `rows` rows.
  void SetParts(int64_t index, std::vector<int64_t> rows);

  /// Freezes the parameters whose name, or that of the weight that they are in place of, matches
  /// one of `patterns` (common/glob.h): they have no gradient. kInvalid when a pattern matches
  /// none, here or elsewhere, naming a near one, or when none is left to train anywhere.
  Status Freeze(const std::vector<std::string>& patterns);

  /// Says that `bias` is what the layer of `weight` adds to its product. `weight` may be the first
  /// of the tensors that the layer has in its place.
  void SetBiasOf(int64_t bias, int64_t weight) { parameters_[bias].bias_of = weight; }

  /// Freezes `index`: a technique keeps it as it is.
  void SetFrozen(int64_t index) { parameters_[index].frozen = true; }

  /// Says that all blocks compute with `index`, which is of unit 0 and of no block, wherever it is
  /// registered: where values are sharded, it is gathered with that unit and stays until values
  /// change; in a pipeline each stage has it.
  void SetOfAllBlocks(int64_t index) {
    parameters_[index].of_all_blocks = true;
    parameters_[index].unit = 0;
    parameters_[index].block = -1;
  }

  /// Quantises the frozen matrix `index`, the same format for all that are. The blocks of a shard
  /// are some of those of the logical matrix; kInvalid where it cuts blocks.
  Status SetFourBit(int64_t index, const FourBitFormat& format);
  const FourBitFormat& four_bit_format() const { return four_bit_format_; }

  /// What a parameter is derived from.
  struct Source {
    std::string name;
    Shape shape;
    Initializer initializer;
    std::vector<int64_t> parts = {};  ///< ParameterAttributes::parts
    Shard shard = {};                 ///< Which part of the logical tensor it is.
  };
  /// Has the trained matrix `index` computed from `sources`, which are trained in its place: a
  /// technique computes its value before the forward pass and their gradients from its own after
  /// the backward pass, those of all tensor-parallel ranks too. Other parameters are registered
  /// before it.
  void Derive(int64_t index, std::vector<Source> sources);

  /// Whether any parameter is derived.
  bool has_derived() const { return has_derived_; }

  /// Parameters registered from now on belong to the next unit: those that one part of the network
  /// computes with, which is its distinct block `block`, or none (-1). Units follow each other as
  /// these parts do; unit 0, which is there from the start, is what the blocks of a transformer
  /// read from.
  void StartUnit(int64_t block = -1);
  int64_t units() const { return unit_ + 1; }
  /// The last unit computes with `index`, which an earlier one has, too: a token table that
  /// classifies.
  void UseInLastUnit(int64_t index) { used_last_ = index; }
  bool LastUnitUsesFirst() const { return used_last_ >= 0; }
  /// The last unit that computes with `index`.
  int64_t LastUnitOf(int64_t index) const {
    return index == used_last_ ? unit_ : parameters_[index].unit;
  }

  /// Says that operations read this matrix unpacked, like vectors; they read others packed.
  void SetReadDirectly(int64_t index) { parameters_[index].read_directly = true; }

  /// Says that ranks that shard values gather this matrix as it is held, also where others are sent
  /// in the type of products. Stacked ones go with the first of them.
  void SetGatheredAsHeld(int64_t index) { parameters_[index].gathered_as_held = true; }

  /// Gives each its type: values are f32, those of matrices `matrices`, unless they are derived,
  /// and of frozen ones that products alone read `frozen`. The list is complete.
  void SetTypes(DType matrices, DType frozen);

  int64_t size() const { return static_cast<int64_t>(parameters_.size()); }
  const Parameter& operator[](int64_t index) const { return parameters_[index]; }
  auto begin() const { return parameters_.begin(); }
  auto end() const { return parameters_.end(); }
  /// Whether one of `count` parameters from `first` on is.
  bool AnyTrainable(int64_t first, int64_t count) const {
    for (int64_t i = first; i < first + count; ++i) {
      if (parameters_[i].trainable()) return true;
    }
    return false;
  }

  /// Index of `name`; kNotFound when the model has no such parameter.
  Result<int64_t> Find(std::string_view name) const;

  /// Numbers in all parameters of the network, frozen ones too, over all model-parallel ranks;
  /// padding and sources do not count. In a pipeline those that this stage counts.
  int64_t ElementCount() const;
  /// Numbers in the parameters that are not frozen, counted as ElementCount counts them.
  int64_t TrainedCount() const;

 private:
  int64_t Add(Parameter parameter);
  template <class Which>
  int64_t CountElements(Which&& which) const;

  std::vector<Parameter> parameters_;
  bool complete_ = false;           ///< See SetTypes.
  std::vector<std::string> names_;  ///< See SetNetwork.
  int64_t blocks_ = 0;              ///< Likewise.
  bool has_derived_ = false;
  int64_t unit_ = 0;  ///< Of what is registered next, as block_.
  int64_t block_ = -1;
  FourBitFormat four_bit_format_;  ///< See SetFourBit.
  int64_t used_last_ = -1;         ///< See UseInLastUnit.
  bool of_stage_ = false;
  int64_t expert_rank_ = 0;  ///< See SetExpertRank, as expert_ranks_.
  int64_t expert_ranks_ = 1;
  int64_t tensor_rank_ = -1;  ///< See SetTensorRank.
  bool shards_rows_ = false;
};

}  // namespace weft::engine
