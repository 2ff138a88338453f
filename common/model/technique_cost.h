#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_counts.h"
#include "common/model/parameter_list.h"
#include "common/model/precision.h"
#include "common/model/step_extent.h"
#include "common/model/sub_layer.h"
#include "common/model/technique_products.h"
#include "common/spec/compatibility.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

struct MemoryInputs;

/// Numbers in f32 of whole matrices.
struct MatrixNumbers {
  double numbers = 0;
  double matrices = 0;  ///< That they are of.

  void Add(const MatrixNumbers& other, double times) {
    numbers += times * other.numbers;
    matrices += times * other.matrices;
  }
};

/// A model that takes less memory, and how a job asks for it.
struct SmallerWeights {
  std::string what;     ///< "frozen weights in 4 bits".
  std::string setting;  ///< The field and its value, as errors name them.
  std::string lines;    ///< The same as the lines of a job file.
  ModelSpec model;
};

/// Numbers that are ranked within whole matrices, in the mean of a step, by how ranks have parts of
/// them. They gather them from host to host.
struct RankedNumbers {
  MatrixNumbers gradients;  ///< Cut as gradients are (ZeRO).
  MatrixNumbers values;     ///< Cut as values are (ZeRO 3).
  MatrixNumbers scores;     ///< Of tensor-parallel ranks those of their rows and columns.

  void Add(const RankedNumbers& other, double times) {
    gradients.Add(other.gradients, times);
    values.Add(other.values, times);
    scores.Add(other.scores, times);
  }
};

/// Work that techniques add to each step, however many tokens it has, or to each merge.
struct StepWork {
  std::vector<Gemm> products;    ///< In f32, whatever the precision.
  double flops = 0;              ///< Of everything else.
  double f32_numbers = 0;        ///< Read or written outside the products, as f32 ...
  double parameter_numbers = 0;  ///< ... and in the type of the parameters.
  RankedNumbers ranked;

  /// Operations of the products and of everything else.
  double Flops() const {
    double sum = flops;
    for (const Gemm& product : products) sum += product.Flops();
    return sum;
  }
};

/// A number that a technique measures while it trains. Ranks report it with each step; workers
/// export it as the gauge weft_train_<name>.
struct TechniqueMetric {
  std::string_view name;  ///< With its unit, as in "flip_rate_ratio".
  std::string_view help;  ///< One sentence.
  /// The label that tells several of them apart; none: there is one. Its value follows the name
  /// where they are reported, as in "adapter_loss_nats/french".
  std::string_view label = {};
};

/// The tensors of a checkpoint that hold something of every trained parameter: prefix, the name of
/// the parameter, suffix.
struct StateName {
  std::string prefix;
  std::string suffix;
};

/// Rows that a technique puts before the tokens of each sequence.
struct VirtualTokenCounts {
  int64_t in_blocks = 0;     ///< In the residual stream of all blocks,
  int64_t in_attention = 0;  ///< or in their keys and values alone.

  int64_t Total() const { return in_blocks + in_attention; }
};

/// Files of data that a field of a job names.
struct DataList {
  std::string field;  ///< "data.train"
  std::vector<std::string>* paths = nullptr;
};

/// How a checkpoint says which elements of a matrix count.
struct ExportedMask {
  StateName bits;  ///< Its 2:4 mask (kernels/sparse24_mask).
  /// f32 [1]: the matrix is SoftThreshold of itself (kernels/sparse24_mask) with this scale. None:
  /// what the mask keeps, as it is.
  std::optional<StateName> scale = std::nullopt;
};

/// The smaller model that exports of a training are, in place of the one that was trained.
struct ExportedTicket {
  ModelSpec model;
  /// Masks of the weights that end sub-layers, u8 [units]: which units of one are kept, each some
  /// successive columns. All are where a weight has none.
  StateName masks;
};

/// A second pass of micro-batches, forward and backward.
struct SecondPass {
  int64_t layers = 0;  ///< That it computes, as they are in the whole network.
  double share = 0;    ///< Of the steps that have it.
};

/// The units of each block, heads and neurons, that a rank's steps compute, where ranks have other
/// ones.
struct RankUnits {
  double share = 1;      ///< Of all, in the mean over the ranks: FLOPs of the job.
  int64_t kv_heads = 0;  ///< Heads of keys and values of the rank with most,
  int64_t neurons = 0;   ///< and neurons of each of its MLPs.
};

/// A frozen network whose logits a training adds to those of its model.
struct AddedNetwork {
  std::string_view field;  ///< Of the job: "train.value_learning.base"
  /// There. It is the Hugging Face folder of its import_path, and has the sizes that
  /// ResolveAddedNetwork (common/formats/added_network.h) has read there.
  const ModelSpec* model = nullptr;
};

/// What a training technique means for validation, planning and export: pure arithmetic over specs,
/// without the engine. One object for each folder of worker/engine/techniques. Hooks that a
/// technique does not override change nothing.
class TechniqueCost {
 public:
  virtual ~TechniqueCost() = default;

  /// The name of its folder.
  virtual std::string_view name() const = 0;

  /// The feature that asks for it.
  virtual const Feature& feature() const = 0;
  bool Asked(const JobSpec& job) const { return feature().asked(job); }

  /// Settings of it that combine with less than it does without them. A job that asks for one asks
  /// for feature(), too.
  virtual std::span<const Feature> settings() const { return {}; }

  /// The refusals of combinations: rows about feature() or one of settings(), with features of the
  /// core (features.h) or of techniques before it in the registry.
  virtual std::span<const Refusal> refusals() const { return {}; }

  /// kInvalid where its own fields do not fit each other.
  virtual Status Check(const JobSpec&) const { return OkStatus(); }

  /// The recipe that it adds to the choices of train.precision; null: none.
  virtual const PrecisionRecipe* precision() const { return nullptr; }
  /// Sets the other fields of such a recipe to their defaults, where a job is given another
  /// precision.
  virtual void ForgetPrecision(JobSpec&) const {}

  /// The tensors that are trained instead of `parameter`, whose value is computed from them; none
  /// where it is trained itself.
  virtual std::vector<ParameterInfo> SourcesOf(const ModelSpec&, const ParameterInfo&) const {
    return {};
  }

  /// The tensors that the network has in place of `weight`, a weight of a layer of a block, in the
  /// order in which the layer registers them; none where it has the weight itself. Products read
  /// matrices among them; ParameterInfo::products says how.
  virtual std::vector<ParameterInfo> ReplacementsOf(const ModelSpec&,
                                                    const ParameterInfo& /*weight*/) const {
    return {};
  }

  /// The tensors that a layer of a block, or one outside them (IsOuterWeight), has besides its
  /// `weight`, each with its AdapterSide, in the order in which the layer registers them; none
  /// where it has the weight alone. Products read them.
  virtual std::vector<ParameterInfo> AdaptersOf(const ModelSpec&,
                                                const ParameterInfo& /*weight*/) const {
    return {};
  }

  /// Whether it only measures: no weight is another one with it.
  virtual bool OnlyMeasures() const { return false; }

  /// Whether it computes with the values of frozen weights otherwise than in their products.
  virtual bool ReadsFrozenWeights(const ModelSpec&) const { return false; }

  /// i32 words of a frozen `weight` of a block that is quantised, in place of numbers of the type
  /// of matrices; 0: it is not. It may be a tensor-parallel rank's part of one of `whole` numbers.
  /// Blocks are dequantised one at a time.
  virtual int64_t QuantizedWordsOf(const ModelSpec&, const ParameterInfo& /*weight*/,
                                   int64_t /*whole*/) const {
    return 0;
  }

  /// kInvalid where its tensors cannot be cut among `columns` tensor-parallel ranks, which have as
  /// many heads and inner columns of MLPs each.
  virtual Status CheckTensorParallel(const ModelSpec&, int64_t /*columns*/) const {
    return OkStatus();
  }

  /// Numbers of the layers of a distinct block whose products read a matrix that is made of their
  /// weights and of what they have besides, in place of the weights.
  virtual int64_t MergedNumbers(const ModelSpec&, int64_t /*block*/) const { return 0; }
  /// The work of making all these matrices once: after each update, or in each pass for which ranks
  /// gather their weights.
  virtual void AddMergeWork(const ModelSpec&, StepWork&) const {}

  /// The tensors of its grafts (worker/engine/nn/graft.h) at the sub-layer of `weight`, for which
  /// ParameterInfo::grafted_weight is true, with AdapterSide::kNeither.
  virtual std::vector<ParameterInfo> GraftsOf(const ModelSpec&,
                                              const ParameterInfo& /*weight*/) const {
    return {};
  }
  /// The tensors of its grafts at the embedding.
  virtual std::vector<ParameterInfo> EmbeddingGraftsOf(const ModelSpec&) const { return {}; }
  /// Numbers that its grafts at a sub-layer of the most blocks save of each token, of the type of
  /// activations, besides what the sub-layer saves.
  virtual int64_t SavedByGrafts(const ModelSpec&, SubLayer) const { return 0; }
  /// Rows of model.width numbers, for each token, that are there at the end of an MLP because of
  /// its grafts, besides what is saved and what is added to the residual stream.
  virtual int64_t RowsAfterMlp(const ModelSpec&) const { return 0; }
  /// What its grafts at such a sub-layer want for each token.
  virtual ProductNumbers WorkspaceOfGrafts(const ModelSpec&, SubLayer) const { return {}; }

  virtual VirtualTokenCounts VirtualTokensOf(const ModelSpec&) const { return {}; }

  /// Whether it keeps any parameter of the network as it is,
  virtual bool FreezesAny(const ModelSpec&) const { return false; }
  /// and this one.
  virtual bool Freezes(const ModelSpec&, const ParameterInfo&) const { return false; }
  /// Takes out of a model what keeps weights of the network as they are.
  virtual void TrainWhole(ModelSpec&) const {}
  /// How it would hold frozen weights in fewer bits, where they are held whole.
  virtual std::optional<SmallerWeights> WithSmallerWeights(const ModelSpec&) const {
    return std::nullopt;
  }
  /// Whether frozen weights of the network begin with other values than those of its folder.
  virtual bool ChangesFrozenWeights(const ModelSpec&) const { return false; }

  /// What the products of a sub-layer of the most blocks want for each token, of experts for each
  /// of their rows, besides what dense ones do, on one of `columns` tensor-parallel ranks that
  /// divide heads and inner columns of MLPs. It follows
  /// from the model, which may be one stage of the network; what they want for each weight follows
  /// from the training (ProductsOf).
  virtual ProductNumbers WorkspaceOfProducts(const ModelSpec&, SubLayer,
                                             int64_t /*columns*/) const {
    return {};
  }

  /// Numbers, of the type of activations, that the products of the classifier want for each row of
  /// `columns` results besides these: of what adapters read, and of results that they scale.
  virtual int64_t WorkspaceOfClassifier(const ModelSpec&, int64_t /*columns*/) const { return 0; }

  /// Workspace that a job wants of it in blocks, besides what its model does.
  virtual JobWorkspace WorkspaceOf(const JobSpec&) const { return {}; }

  /// Whether it may treat two blocks of the network differently. Counting then visits each block.
  virtual bool DiffersByBlock(const ModelSpec&) const { return false; }

  virtual void AddStepWork(const ModelShape&, const TrainSpec&, StepWork&) const {}

  /// Expected share of the work of a sub-layer, forward and backward, that training computes for a
  /// micro-batch of `sequences`; 0: the limit of many sequences. A gate (worker/engine/nn/graft.h)
  /// skips the rest.
  virtual double ComputedShare(const ModelSpec&, SubLayer, int64_t /*layer*/,
                               int64_t /*sequences*/) const {
    return 1;
  }

  /// The units of blocks that its ranks compute, all together each of them once. None: each rank
  /// all.
  virtual std::optional<RankUnits> UnitsOfRank(const JobSpec&) const { return std::nullopt; }

  /// Whether residual branches are changed by something before they are added: their gradients are
  /// then other tensors than that of the residual stream.
  virtual bool ChangesBranches(const ModelSpec&) const { return false; }

  /// How it multiplies by weights of blocks, and how these come to the device; any() is false where
  /// it has no say in either.
  virtual TechniqueProducts ProductsOf(const TrainSpec&, ComputeUnits) const { return {}; }

  /// Where ProductsOf() make training faster, and the job does not insist on them: the same job
  /// without.
  virtual std::optional<JobSpec> WithoutProducts(const JobSpec&) const { return std::nullopt; }
  /// What the user can ask for instead of products that are slower than dense ones.
  virtual std::string_view InsteadOfSlowProducts() const { return {}; }
  /// Whether a job with such products is planned all the same: they train what dense ones would.
  virtual bool KeepsSlowProducts() const { return false; }

  /// Bytes of workspace between the backward pass and the update.
  virtual int64_t WorkspaceBytes(const MemoryInputs&) const { return 0; }
  /// Bytes of workspace between the backward pass and the update in the memory of the host, where
  /// the optimizer is offloaded.
  virtual int64_t HostWorkspaceBytes(const MemoryInputs&) const { return 0; }

  /// Bytes that it keeps of an updated parameter with the state of the optimizer.
  virtual int64_t StateBytes(const JobSpec&, const ParameterInfo&) const { return 0; }
  /// Bytes besides those, all of them on each rank where ranks shard updates.
  virtual int64_t ReplicatedStateBytes(const JobSpec&, const ParameterInfo&) const { return 0; }
  /// Whether StateBytes, or those, may differ between two blocks of the network. Counting then
  /// visits each.
  virtual bool StateDiffersByBlock(const JobSpec&) const { return false; }

  /// The matrices that the training adds to `weight`, a parameter of the network or a
  /// tensor-parallel rank's part of it: not parameters of the network, but trained, packed,
  /// sharded and saved as its own. Each has its AdapterSide and a block.
  virtual std::vector<ParameterInfo> AuxiliaryParametersOf(const TrainSpec&,
                                                           const ParameterInfo& /*weight*/) const {
    return {};
  }

  /// The tensors whose mean replaces each trained parameter, or its source, in exports of a
  /// checkpoint after `updates` updates; none where the parameters themselves count.
  virtual std::vector<StateName> ExportedAverages(const JobSpec&, int64_t /*updates*/) const {
    return {};
  }

  /// The masks under which trained matrices are in exports of a checkpoint after `steps` steps.
  /// None: they count as they are.
  virtual std::optional<ExportedMask> ExportedMasks(const JobSpec&, int64_t /*steps*/) const {
    return std::nullopt;
  }

  /// Which of several trainings in turn step `step`, from 0, belongs to, for people: "round 2 of 5,
  /// step 40 of 97". `metrics`: what the step measured, by name. Empty: there is one training.
  virtual std::string PartOfTraining(const JobSpec&, int64_t /*step*/,
                                     const std::map<std::string, double>& /*metrics*/) const {
    return "";
  }

  /// None: exports are of the model that is trained. Masks are in each checkpoint.
  virtual std::optional<ExportedTicket> Ticket(const ModelSpec&) const { return std::nullopt; }

  /// Whether steps of the training differ in their extent.
  virtual bool ChangesExtent(const JobSpec&) const { return false; }
  /// Then changes the extent of a step to what it is with this technique.
  virtual void SetExtent(const JobSpec&, int64_t /*step*/, StepExtent&) const {}
  /// Makes the network what the step with most layers runs. It has the same parameters.
  virtual void SetDeepest(const TrainSpec&, ModelSpec&) const {}

  /// The network within the network that the training makes besides (Technique::SubNetworkMetric),
  /// as one of its own: each of its parameters is the first rows and columns of the whole network's
  /// of this name. None: there is none.
  virtual std::optional<ModelSpec> SubNetworkOf(const JobSpec&) const { return std::nullopt; }
  /// What micro-batches compute of it, besides the pass of the whole network. None: nothing.
  virtual std::optional<SecondPass> SecondPassOf(const ModelSpec&, const TrainSpec&) const {
    return std::nullopt;
  }

  /// The network whose logits are added to those of the model. None: there is none.
  virtual std::optional<AddedNetwork> AddedNetworkOf(const TrainSpec&) const {
    return std::nullopt;
  }
  /// Puts another model into the field of that network, if there is one.
  virtual void SetAddedNetwork(TrainSpec&, const ModelSpec&) const {}
  /// Whether the model's head keeps a copy of a chunk of its own logits before others are added.
  virtual bool KeepsOwnLogits(const TrainSpec&) const { return false; }

  /// How often it goes through all that is trained after the passes of a step, in the mean over the
  /// steps: ranks with sharded parameters bring it for that (Pass::kTrained of
  /// worker/engine/nn/parameter_prefetcher.h).
  virtual double TrainedPasses(const ModelSpec&, const TrainSpec&) const { return 0; }

  /// Whether ranks with sharded parameters gather a weight as it is held, also where they send
  /// others in a smaller type, that of products.
  virtual bool GathersAsHeld(const TrainSpec&, const ParameterInfo& /*weight*/) const {
    return false;
  }

  /// Forward passes of each micro-batch besides the one that is differentiated.
  virtual int64_t ScoringPasses(const TrainSpec&) const { return 0; }

  /// The jobs that this one trains together: each micro-batch has equally many sequences of each,
  /// part after part in this order, and each trains the parameters of its own part of the rows
  /// (ParameterAttributes::row_part) as it would by itself. None: it is one job.
  virtual std::vector<JobSpec> JointJobs(const JobSpec&) const { return {}; }

  /// Data that its fields name, besides those of `data`.
  virtual std::vector<DataList> DataLists(JobSpec&) const { return {}; }

  /// Micro-batches that a whole batch must have, those of all ranks together.
  virtual int64_t LeastMicroBatches(const JobSpec&) const { return 1; }

  virtual std::vector<TechniqueMetric> Metrics() const { return {}; }
};

/// One of each technique, in the order of worker/engine/techniques/registry.def, which defines
/// this.
const std::vector<const TechniqueCost*>& TechniqueCosts();

// What all techniques together say.

std::vector<ParameterInfo> SourcesOf(const ModelSpec& model, const ParameterInfo& parameter);
std::vector<ParameterInfo> ReplacementsOf(const ModelSpec& model, const ParameterInfo& weight);
std::vector<ParameterInfo> AdaptersOf(const ModelSpec& model, const ParameterInfo& weight);
/// Whether a technique has adapters besides a weight of an expert. With the sizes of the model
/// known.
bool HasExpertAdapters(const ModelSpec& model);
int64_t QuantizedWordsOf(const ModelSpec& model, const ParameterInfo& weight, int64_t whole);
/// Numbers of the merged matrices of all distinct blocks together, and of the block with most.
int64_t MergedNumbers(const ModelSpec& model);
int64_t LargestMergedBlock(const ModelSpec& model);
/// The type in which frozen matrices are stored that products alone read
/// (ParameterInfo::only_multiplied): that of bf16 products where a technique freezes the network
/// and none reads its values otherwise, and else that of all matrices.
DType FrozenMatrixType(const ModelSpec& model, const PrecisionRecipe& precision);
/// Whether a technique freezes the network. What is frozen then stays on the device where the
/// optimizer is offloaded and parameters neither come unit by unit nor are sharded.
bool TechniquesFreeze(const ModelSpec& model);
/// Whether checkpoints leave out the frozen weights of model.import_path, which are read from that
/// folder again: a technique freezes the network and leaves it as it is there.
bool LeavesOutBase(const ModelSpec& model);
/// The first technique with ReadsFrozenWeights; null: none.
const TechniqueCost* ReaderOfFrozenWeights(const ModelSpec& model);
std::vector<ParameterInfo> GraftsOf(const ModelSpec& model, const ParameterInfo& weight);
std::vector<ParameterInfo> EmbeddingGraftsOf(const ModelSpec& model);
int64_t SavedByGrafts(const ModelSpec& model, SubLayer sub_layer);
int64_t RowsAfterMlp(const ModelSpec& model);
ProductNumbers WorkspaceOfGrafts(const ModelSpec& model, SubLayer sub_layer);
VirtualTokenCounts VirtualTokensOf(const ModelSpec& model);
bool FrozenByTechniques(const ModelSpec& model, const ParameterInfo& parameter);
ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer, int64_t columns);
int64_t WorkspaceOfClassifier(const ModelSpec& model, int64_t columns);
JobWorkspace WorkspaceOf(const JobSpec& job);
bool DiffersByBlock(const ModelSpec& model);
StepWork StepWorkOf(const ModelShape& shape, const TrainSpec& train);
/// The work of making the matrices that weights are merged into once; no part of StepWorkOf.
StepWork MergeWorkOf(const ModelSpec& model);
/// The units of a rank, of the technique that divides them; none where no technique does.
std::optional<RankUnits> UnitsOfRank(const JobSpec& job);
/// Gives `model` the heads and neurons of such a rank, of the same sizes.
void NarrowTo(const RankUnits& units, ModelSpec& model);
/// The mean over the layers of the network, as TechniqueCost::ComputedShare.
ComputedShares ComputedSharesOf(const ModelSpec& model, int64_t sequences = 0);
/// The mean over the layers of the whole network that `shape` is of.
ComputedShares ComputedSharesOf(const ModelShape& shape, int64_t sequences);
bool ChangesBranches(const ModelSpec& model);
double TrainedPasses(const ModelSpec& model, const TrainSpec& train);
bool GathersAsHeld(const TrainSpec& train, const ParameterInfo& weight);
ModelSpec DeepestModel(const ModelSpec& model, const TrainSpec& train);
/// Points into `train`.
std::optional<AddedNetwork> AddedNetworkOf(const TrainSpec& train);
void SetAddedNetwork(TrainSpec& train, const ModelSpec& network);
bool KeepsOwnLogits(const TrainSpec& train);
int64_t ScoringPasses(const TrainSpec& train);
int64_t LeastMicroBatches(const JobSpec& job);
std::vector<JobSpec> JointJobs(const JobSpec& job);
/// All data that a job names, with data.train and data.validation first.
std::vector<DataList> DataLists(JobSpec& job);
/// How many parts a micro-batch has: 1 where it is one job.
int64_t JointParts(const JobSpec& job);
/// Includes the averages that an optimizer keeps itself.
std::vector<StateName> ExportedAverages(const JobSpec& job, int64_t updates);

std::optional<ExportedMask> ExportedMasks(const JobSpec& job, int64_t steps);
std::string PartOfTraining(const JobSpec& job, int64_t step,
                           const std::map<std::string, double>& metrics);
std::optional<ExportedTicket> TicketOf(const ModelSpec& model);
std::optional<ModelSpec> SubNetworkOf(const JobSpec& job);
std::optional<SecondPass> SecondPassOf(const ModelSpec& model, const TrainSpec& train);

}  // namespace weft
