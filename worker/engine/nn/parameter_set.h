#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/nn/parameter_list.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Where the values of all parameters have come from.
enum class ValuesFrom : uint8_t {
  kDrawn,       ///< Initialize.
  kImported,    ///< Weights of the network, without what is trained in their place.
  kCheckpoint,  ///< All that is trained.
};

class ParameterFile;
struct ParameterPart;

/// What the gradient of a trained parameter is of.
enum class GradientKind : uint8_t {
  kPlain,
  kOfDerived,  ///< A derived matrix, or one that is stacked with such.
  kOfSource,
};

/// Where the parameters of its list reside: their values in one buffer and the f32 gradients of the
/// trained ones in another, in order of registration except derived ones (GradientOrder); on the
/// device, in the host memory pool, in parts, or in a file. Each begins on a 64-byte boundary
/// (except stacked ones) with zeros in between.
class ParameterSet : public ParameterList {
 public:
  ParameterSet();
  ~ParameterSet();
  ParameterSet(const ParameterSet&) = delete;
  ParameterSet& operator=(const ParameterSet&) = delete;

  /// Has `hook` called when values have come from somewhere, all at once, in the order of the
  /// calls.
  void AddValuesHook(std::function<Status(Context&, ValuesFrom)> hook) {
    values_hooks_.push_back(std::move(hook));
  }
  /// Calls the hooks.
  Status OnValues(Context& context, ValuesFrom from) const;

  /// Shards the updates of these parameters over `ranks` ranks; those of experts over the ranks
  /// that hold the same ones. Ranges of gradients are then multiples of 64 bytes for each rank and,
  /// where all trained values are f32, they have the layout of their gradients. With
  /// `place_gradients` Allocate makes no memory for gradients: PlaceGradients says where they are.
  /// Before Allocate.
  void ShareAmong(int64_t ranks, bool place_gradients = false);

  /// Shards values where ShareAmong shards updates: rank `rank` holds only its part of each value;
  /// of experts part `part_of_experts`, with a part for each rank that holds the same ones. A
  /// prefetcher (parameter_prefetcher.h) gathers whole values, unit by unit, and says where they
  /// are; until then they have no value(). Before Allocate.
  void ShardValues(int64_t rank, int64_t part_of_experts) {
    shard_rank_ = rank;
    part_of_experts_ = part_of_experts;
  }
  bool values_sharded() const { return shard_rank_ >= 0; }
  int64_t shard_rank() const { return shard_rank_; }

  /// Puts values and gradients in the host memory pool of the context; PlaceGradients gives
  /// gradients temporary places on the device. The device has a copy of the values that operations
  /// read directly: operand(). Before Allocate.
  void Offload() { offloaded_ = true; }
  bool offloaded() const { return offloaded_; }

  /// Keeps these units, at least one, on the device under Offload, with their gradients. Before
  /// Allocate.
  void KeepOnDevice(const std::vector<int64_t>& units);
  bool keeps_some_on_device() const { return !device_updated_units_.empty(); }
  /// Keeps what is frozen on the device under Offload, except what is stacked with something that
  /// is trained. Before Allocate.
  void KeepFrozenOnDevice() { keeps_frozen_ = true; }
  /// Whether `index` resides in the host memory pool.
  bool on_host(int64_t index) const { return offloaded_ && !IsKept(index); }

  /// Offloaded values have copies on the device only while a prefetcher (parameter_prefetcher.h)
  /// brings them, unit by unit. Before Allocate.
  void StreamValues() { streamed_ = true; }
  bool streamed() const { return streamed_; }
  /// Puts streamed or sharded values and their gradients in a file (parameter_file.h). They have a
  /// value() only while they are loaded into memory. Before Allocate.
  void KeepInFile() { in_file_ = true; }
  /// Null where they are in memory.
  ParameterFile* file() const { return file_.get(); }
  /// Says that the values of `unit`, or this rank's parts of sharded ones, are at `data` from now
  /// on; nowhere for null.
  void PlaceUnit(int64_t unit, std::byte* data);
  /// The byte of its unit's values at which a value in a file, or this rank's part of it, begins.
  size_t OffsetInUnit(int64_t index) const;
  /// Whether operations read something of `unit` directly, with or without `tables`; words of what
  /// is quantised (SetFourBit) count as that, as they do below.
  bool ReadsOperands(int64_t unit, bool tables) const {
    const UnitSizes& sizes = unit_sizes_[static_cast<size_t>(unit)];
    return (tables ? sizes.all : sizes.without_tables) > 0;
  }
  /// Allocates device memory for the values of `unit` that operations read directly: all or, with
  /// `tables` false, all except the looked-up tables of unit 0, which no backward pass reads.
  Status ReserveOperands(Context& context, int64_t unit, bool tables);
  /// Fills it, each value as soon as a running update is done with it.
  void BringOperands(Context& context, int64_t unit) const;
  /// Frees it.
  void DropOperands(int64_t unit) { unit_operands_[static_cast<size_t>(unit)] = {}; }

  /// Makes both buffers (gradients only when asked), all zero. `matrices` is f32 or bf16; `frozen`
  /// the type of frozen ones that products alone read, where that is another one.
  Status Allocate(Context& context, bool with_gradients, DType matrices = DType::kF32,
                  std::optional<DType> frozen = {});

  /// Draws every parameter from the Philox stream of (seed, its name): the same numbers whatever
  /// the rank, the number of threads and the other parameters; a shard starts as that part of the
  /// whole. Then calls OnValues. On the host, parameter by parameter, wherever they are.
  Status Initialize(uint64_t seed);
  /// The numbers that it draws for a parameter, those of all ranks, before they are rounded.
  std::vector<float> DrawnValue(int64_t index, uint64_t seed) const;

  /// Replaces the value of a parameter that is quantised (SetFourBit) by `values`, all of the
  /// logical tensor, whose part of a shard is taken when they are quantised; of sharded ones this
  /// rank's part, and the words that have been gathered. kInvalid where one is not finite.
  Status Quantize(int64_t index, std::span<const float> values);
  /// All words of it [quantized_words] i32: of sharded ones those that have been gathered.
  TensorView QuantizedWords(int64_t index) const;
  /// Writes its value to `to`, of any float type, contiguous, in the order of `stream`. Words that
  /// are streamed or sharded have been brought.
  Status Dequantize(const Stream& stream, int64_t index, const TensorView& to) const;
  /// Says that it is in `values`, contiguous, from now on; nowhere for an empty view: its value()
  /// then has no data.
  void PlaceDequantized(int64_t index, const TensorView& values) { placed_[index] = values; }

  /// The stream in whose order the parameters are read and written; set by Allocate.
  const Stream& stream() const { return stream_; }

  TensorView value(int64_t index) const { return ValueView(index, 1, false); }
  /// The tensor that operations read on the device: the value itself, or its copy.
  TensorView operand(int64_t index) const { return OperandView(index, 1, false); }
  TensorView padded_operand(int64_t index) const { return OperandView(index, 1, true); }
  TensorView stacked_operand(int64_t first, int64_t count) const {
    return OperandView(first, count, false);
  }
  /// Returns once a running update in the host memory pool is done with `index`.
  void AwaitUpdated(HostMemoryPool& host, int64_t index) const;
  /// Renews the copies of offloaded values of `unit` that are not streamed, each as soon as a
  /// running update is done with it.
  void UploadOperands(Context& context, int64_t unit) const;

  /// Empty for a frozen parameter, and while it has no place. That of a derived parameter is its
  /// own, before the gradients of its sources are computed from it.
  TensorView gradient(int64_t index) const { return GradientView(index, 1, false); }
  /// The value with the padded rows.
  TensorView padded_value(int64_t index) const { return ValueView(index, 1, true); }
  TensorView padded_gradient(int64_t index) const { return GradientView(index, 1, true); }
  /// `count` stacked parameters as one, from `first` on; for gradients all trainable.
  TensorView stacked_value(int64_t first, int64_t count) const {
    return ValueView(first, count, false);
  }
  TensorView stacked_gradient(int64_t first, int64_t count) const {
    return GradientView(first, count, false);
  }

  /// See ShareAmong.
  bool places_gradients() const { return place_gradients_; }
  /// The whole buffer of gradients, [GradientCount()] f32; empty where they are placed, or in a
  /// file. Where some units are kept on the device, only those in the host memory pool.
  const Tensor& gradients() const { return gradients_; }
  /// Moves offloaded gradients to `memory`, which is as large and zero; returns their previous
  /// memory.
  Tensor MoveGradients(Tensor memory);
  int64_t GradientCount() const { return gradient_count_; }
  /// Element of the whole buffer at which the gradient of a trained parameter begins.
  int64_t GradientOffset(int64_t index) const { return places_[index].gradient; }
  /// Whether the device has a copy of an offloaded value, for operations that read it unpacked.
  bool has_operand_copy(int64_t index) const { return places_[index].operand >= 0; }
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
  };
  /// Gradients that the backward pass computes, by parameter: none of frozen ones and sources.
  std::vector<TensorView> DifferentiatedGradients() const;
  /// The part of gradients() that holds them, with the padding: all but sources.
  TensorView differentiated_gradients() const;
  using ParameterList::Counts;
  /// Whether this rank counts the gradient of `part` in such sums: CountsPart, unless it is whole.
  bool Counts(const ParameterPart& part) const;
  /// The trainable parameters in the order of their gradients, where values are not sharded: kind
  /// after kind, since ranks that shard updates sum those of derived matrices otherwise.
  const std::vector<int64_t>& GradientOrder() const { return gradient_order_; }
  GradientKind gradient_kind(int64_t index) const {
    return gradient_kinds_[static_cast<size_t>(index)];
  }
  /// The range of gradients() of one of them, including the padding after it; the ranges of those
  /// that follow each other in this order touch.
  Range GradientRange(int64_t index) const {
    return {places_[index].gradient, places_[index].gradient_end};
  }

  /// Says that the gradients of `range`, whole parameters, are at `data` from now on; nowhere for
  /// null.
  void PlaceGradients(const Range& range, float* data);

  /// Contiguous gradients.
  struct GradientRun {
    Range range = {};
    int64_t held_at = 0;  ///< Element of their memory at which they begin.
    bool kept = false;    ///< On the device, of offloaded ones.
  };
  /// All of them in their order: one run, except where some units are kept on the device. None
  /// where they are placed, or in a file.
  const std::vector<GradientRun>& gradient_runs() const { return gradient_runs_; }
  /// Where the gradients of `range`, of one run, are when PlaceGradients says nothing else,
  Tensor HeldGradients(const Range& range) const;
  /// as it does no longer; nowhere without such memory.
  void PlaceGradientsWhereHeld();

  /// Whether the trained values have the layout of their gradients, see ShareAmong.
  bool values_follow_gradients() const { return values_follow_gradients_; }
  /// Then the values, f32, where `range` of gradients() has their gradients; those in a file,
  /// of one unit, while this is in memory.
  TensorView ValuesAlong(const Range& range) const;

  /// The values for checkpoints: all except derived ones; for sharded ones this rank's parts.
  std::vector<NamedTensor> NamedValues() const;

  /// The part of a value that this rank holds permanently: successive elements, maybe none, of a
  /// sharded one, else all: words of one that is quantised.
  struct HeldValue {
    int64_t first = 0;
    TensorView view;  ///< [count] of sharded ones.
  };
  HeldValue held_value(int64_t index) const;

  /// A flat parameter (FSDP): values that are sharded together. They have one type, the same units
  /// and the same ranks, trained or not. Ranks have equal parts of the flat parameter, multiples of
  /// 64 bytes, cut anywhere in a tensor. The parts of a rank are contiguous, and gradients of
  /// trained flat parameters have the layout of their values.
  struct FlatParameter {
    Range elements = {};         ///< As offsets of gradients; not trained ones follow.
    bool trained = false;        ///< Some of it.
    bool rounded = false;        ///< Gathered in bf16 where products read that: not vectors, words
                                 ///< (SetFourBit) and what SetGatheredAsHeld names.
    DType dtype = DType::kF32;   ///< As they are held.
    int64_t first_unit = 0;      ///< That uses it.
    int64_t last_unit = 0;       ///< Likewise; others between the two do not.
    bool looked_up = false;      ///< Tables: unit 0 reads them in the forward pass alone.
    bool of_experts = false;     ///< Of expert-parallel ranks (SetExpertRank).
    bool replicated = false;     ///< Shared by blocks: always in memory, nothing brings it.
    bool of_all_blocks = false;  ///< Of SetOfAllBlocks.
    int64_t ranks = 1;           ///< That have parts ...
    int64_t rank = 0;            ///< ... and of them this one.
    std::vector<int64_t> parameters = {};  ///< Rising.
    size_t held_offset = 0;  ///< Byte, of those of its unit, at which `held` begins in a file.
    TensorView held = {};    ///< [elements / ranks], this rank's part, since Allocate; of a file
                             ///< while it is in memory.
  };
  const std::vector<FlatParameter>& flat_parameters() const { return flat_parameters_; }

  /// Says that the values of a flat parameter are in `values`, in any float type (words as words),
  /// from now on; nowhere for null.
  void PlaceFlatParameter(const FlatParameter& flat, const TensorView& values);

  /// The prefetcher that brings sharded values; none where all values are here.
  void SetPrefetcher(ParameterPrefetcher* prefetcher) { prefetcher_ = prefetcher; }
  ParameterPrefetcher* prefetcher() const { return prefetcher_; }

  /// `copies` are made of parameters `first` on: made anew whenever these have been placed.
  void AddCopies(int64_t first, std::shared_ptr<DerivedCopies> copies) {
    copies_.push_back({first, std::move(copies)});
  }
  struct CopiesOf {
    int64_t first = 0;
    std::shared_ptr<DerivedCopies> copies;
  };
  const std::vector<CopiesOf>& copies() const { return copies_; }
  PackedCopies& spare_copies() { return spare_copies_; }

 private:
  /// Where a parameter is.
  struct Place {
    size_t value = 0;          ///< First byte in the buffer of values; of sharded ones element.
    int64_t operand = -1;      ///< First byte in that of operands (of the unit, where values are
                               ///< streamed), where it has a place there.
    int64_t gradient = 0;      ///< First element in that of gradients, of trained ones, ...
    int64_t gradient_end = 0;  ///< ... and where the next one begins.
  };
  /// Bytes of values in the two memories: those of kept units, and all others.
  struct ValueSizes {
    size_t bytes = 0;
    size_t kept = 0;
  };
  ValueSizes LayOutValues();
  size_t FollowGradientsInUnits();
  bool ValuesCanFollowGradients() const;
  /// Where the gradients of a unit begin, or those of the next one that has some.
  int64_t FirstGradient(int64_t unit) const;
  void OrderGradients();
  void LayOutGradients();
  void LayOutFlatParameters();
  Status AllocateShards(Context& context);
  Status MakeFile(const Context& context);
  const FlatParameter& FlatParameterOf(int64_t index) const;
  /// Elements of the buffer of gradients that this rank holds of a flat parameter.
  Range OwnOf(const FlatParameter& flat) const;
  Status AllocateOperands(Context& context);
  /// Elements of gradients in the two memories: those of kept units, and all others.
  struct GradientCounts {
    int64_t elements = 0;
    int64_t kept = 0;
  };
  GradientCounts LayOutGradientRuns();
  Status AllocateGradients(Context& context, Context& below);
  void LayOutUnitOperands();
  bool IsKept(int64_t index) const { return !kept_.empty() && kept_[static_cast<size_t>(index)]; }
  /// Says which are kept on the device.
  void ChooseKept();
  /// All words of what is quantised, where it is dequantised.
  TensorView BroughtWords(int64_t index) const;
  TensorView ValueView(int64_t index, int64_t count, bool padded) const;
  TensorView OperandView(int64_t index, int64_t count, bool padded) const;
  TensorView GradientView(int64_t index, int64_t count, bool padded) const;
  Shape ShapeOf(int64_t index, int64_t count, bool padded) const;

  Stream stream_;
  std::vector<Place> places_;                 ///< By parameter, from Allocate on.
  std::vector<int64_t> gradient_order_;       ///< See GradientOrder, ...
  std::vector<GradientKind> gradient_kinds_;  ///< ... as this, by parameter.
  std::vector<std::function<Status(Context&, ValuesFrom)>> values_hooks_;
  int64_t ranks_ = 1;
  bool place_gradients_ = false;
  bool offloaded_ = false;
  /// Whether the parameters of each unit stay on the device although the others are offloaded;
  /// empty: none does.
  std::vector<bool> device_updated_units_;
  bool keeps_frozen_ = false;
  std::vector<bool> kept_;  ///< On the device, by parameter; empty: none or, not offloaded, all.
  bool streamed_ = false;
  bool in_file_ = false;
  bool values_follow_gradients_ = false;
  int64_t shard_rank_ = -1;
  int64_t part_of_experts_ = -1;
  std::vector<FlatParameter> flat_parameters_;  ///< Of sharded values.
  std::vector<TensorView> placed_;        ///< By parameter: flat, from it on to the end of its flat
                                          ///< parameter or of its stack.
  std::vector<TensorView> placed_words_;  ///< Likewise the words of sharded ones (SetFourBit).
  std::vector<CopiesOf> copies_;
  PackedCopies spare_copies_;
  ParameterPrefetcher* prefetcher_ = nullptr;
  int64_t gradient_count_ = 0;
  int64_t differentiated_count_ = 0;  ///< Elements before the gradients of sources.
  Tensor values_;                     ///< Bytes: parameters differ in type.
  Tensor kept_values_;                ///< The same of kept_.
  Tensor operands_;                   ///< Bytes; none where values are not offloaded.
  struct UnitOperands {
    Tensor memory;  ///< Bytes; none: not on the device.
    bool tables = false;
  };
  struct UnitSizes {
    int64_t all = 0;
    int64_t without_tables = 0;
  };
  std::vector<UnitOperands> unit_operands_;  ///< By unit, where values are streamed.
  std::vector<UnitSizes> unit_sizes_;        ///< Likewise; bytes.
  Tensor gradients_;
  Tensor kept_gradients_;  ///< Of device_updated_units_.
  std::vector<GradientRun> gradient_runs_;
  std::vector<float*> gradient_data_;  ///< By parameter; null: nowhere.
  std::unique_ptr<ParameterFile> file_;
  std::vector<size_t> unit_begins_;      ///< Of the values of units in a file; and their end.
  std::vector<std::byte*> unit_values_;  ///< Where they are in memory.
};

}  // namespace weft::engine
