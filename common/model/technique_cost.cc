#include "common/model/technique_cost.h"

#include <algorithm>
#include <utility>

#include "common/model/model_sizes.h"
#include "common/model/name_patterns.h"
#include "common/model/parameter_list.h"
#include "common/model/precision.h"
#include "common/spec/technique_checks.h"

namespace weft {
namespace {

int64_t MergedNumbersOfBlock(const ModelSpec& model, int64_t block) {
  int64_t numbers = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    numbers += technique->MergedNumbers(model, block);
  }
  return numbers;
}

void Add(const ProductNumbers& more, ProductNumbers& to) {
  to.forward += more.forward;
  to.backward += more.backward;
  to.deferred += more.deferred;
  to.weights += more.weights;
  to.in_format += more.in_format;
}

}  // namespace

std::vector<ParameterInfo> SourcesOf(const ModelSpec& model, const ParameterInfo& parameter) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::vector<ParameterInfo> sources = technique->SourcesOf(model, parameter);
    if (!sources.empty()) return sources;
  }
  return {};
}

std::vector<ParameterInfo> ReplacementsOf(const ModelSpec& model, const ParameterInfo& weight) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::vector<ParameterInfo> tensors = technique->ReplacementsOf(model, weight);
    if (!tensors.empty()) return tensors;
  }
  return {};
}

std::vector<ParameterInfo> AdaptersOf(const ModelSpec& model, const ParameterInfo& weight) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::vector<ParameterInfo> tensors = technique->AdaptersOf(model, weight);
    if (!tensors.empty()) return tensors;
  }
  return {};
}

bool HasExpertAdapters(const ModelSpec& model) {
  if (model.experts == 0) return false;
  // Searches for meshes ask for each of thousands: an expert for all where they are alike.
  ModelSpec listed = model;
  if (!DiffersByBlock(model)) listed.layers = listed.distinct_blocks = listed.experts = 1;
  for (int64_t block = 0; block < DistinctBlocks(listed); ++block) {
    const std::vector<ParameterInfo> parameters = PlainBlockParameters(listed, block);
    if (std::any_of(parameters.begin(), parameters.end(), [&](const ParameterInfo& parameter) {
          return parameter.expert >= 0 && !AdaptersOf(model, parameter).empty();
        })) {
      return true;
    }
  }
  return false;
}

int64_t MergedNumbers(const ModelSpec& model) {
  int64_t numbers = 0;
  if (!TechniquesFreeze(model)) return numbers;  // without going through the blocks
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    numbers += MergedNumbersOfBlock(model, block);
  }
  return numbers;
}

bool TechniquesFreeze(const ModelSpec& model) {
  return std::any_of(TechniqueCosts().begin(), TechniqueCosts().end(),
                     [&](const TechniqueCost* technique) { return technique->FreezesAny(model); });
}

bool LeavesOutBase(const ModelSpec& model) {
  if (model.import_path.empty() || !TechniquesFreeze(model)) return false;
  return std::none_of(
      TechniqueCosts().begin(), TechniqueCosts().end(),
      [&](const TechniqueCost* technique) { return technique->ChangesFrozenWeights(model); });
}

const TechniqueCost* ReaderOfFrozenWeights(const ModelSpec& model) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->ReadsFrozenWeights(model)) return technique;
  }
  return nullptr;
}

DType FrozenMatrixType(const ModelSpec& model, const PrecisionRecipe& precision) {
  const bool reads = ReaderOfFrozenWeights(model) != nullptr;
  const bool rounded = precision.products == DType::kBF16 && precision.classifier == DType::kBF16;
  return TechniquesFreeze(model) && !reads && rounded ? DType::kBF16 : precision.matrices;
}

int64_t LargestMergedBlock(const ModelSpec& model) {
  int64_t most = 0;
  if (!TechniquesFreeze(model)) return most;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    most = std::max(most, MergedNumbersOfBlock(model, block));
  }
  return most;
}

std::vector<ParameterInfo> GraftsOf(const ModelSpec& model, const ParameterInfo& weight) {
  std::vector<ParameterInfo> tensors;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    for (ParameterInfo& tensor : technique->GraftsOf(model, weight)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

std::vector<ParameterInfo> EmbeddingGraftsOf(const ModelSpec& model) {
  std::vector<ParameterInfo> tensors;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    for (ParameterInfo& tensor : technique->EmbeddingGraftsOf(model)) {
      tensors.push_back(std::move(tensor));
    }
  }
  return tensors;
}

int64_t SavedByGrafts(const ModelSpec& model, SubLayer sub_layer) {
  int64_t numbers = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    numbers += technique->SavedByGrafts(model, sub_layer);
  }
  return numbers;
}

int64_t RowsAfterMlp(const ModelSpec& model) {
  int64_t rows = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) rows += technique->RowsAfterMlp(model);
  return rows;
}

ProductNumbers WorkspaceOfGrafts(const ModelSpec& model, SubLayer sub_layer) {
  ProductNumbers sum;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    Add(technique->WorkspaceOfGrafts(model, sub_layer), sum);
  }
  return sum;
}

VirtualTokenCounts VirtualTokensOf(const ModelSpec& model) {
  VirtualTokenCounts counts;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const VirtualTokenCounts own = technique->VirtualTokensOf(model);
    counts.in_blocks += own.in_blocks;
    counts.in_attention += own.in_attention;
  }
  return counts;
}

bool FreezesAny(const ModelSpec& model) {
  return !model.freeze.empty() || TechniquesFreeze(model);
}

int64_t QuantizedWordsOf(const ModelSpec& model, const ParameterInfo& weight, int64_t whole) {
  int64_t words = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    words = std::max(words, technique->QuantizedWordsOf(model, weight, whole));
  }
  return words;
}

bool FrozenByTechniques(const ModelSpec& model, const ParameterInfo& parameter) {
  return std::any_of(
      TechniqueCosts().begin(), TechniqueCosts().end(),
      [&](const TechniqueCost* technique) { return technique->Freezes(model, parameter); });
}

ProductNumbers WorkspaceOfProducts(const ModelSpec& model, SubLayer sub_layer, int64_t columns) {
  ProductNumbers sum;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    Add(technique->WorkspaceOfProducts(model, sub_layer, columns), sum);
  }
  return sum;
}

int64_t WorkspaceOfClassifier(const ModelSpec& model, int64_t columns) {
  int64_t numbers = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    numbers += technique->WorkspaceOfClassifier(model, columns);
  }
  return numbers;
}

JobWorkspace WorkspaceOf(const JobSpec& job) {
  JobWorkspace all;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const JobWorkspace more = technique->WorkspaceOf(job);
    Add(more.attention, all.attention);
    Add(more.mlp, all.mlp);
    all.changes_branches = all.changes_branches || more.changes_branches;
    all.gradients += more.gradients;
  }
  return all;
}

bool DiffersByBlock(const ModelSpec& model) {
  return FreezesAny(model) || std::any_of(TechniqueCosts().begin(), TechniqueCosts().end(),
                                          [&](const TechniqueCost* technique) {
                                            return technique->DiffersByBlock(model);
                                          });
}

Status CheckTechniques(const JobSpec& job) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    WEFT_RETURN_IF_ERROR(technique->Check(job));
  }
  return CheckParameterPatterns(job);
}

std::vector<Refusal> TechniqueRefusals() {
  std::vector<Refusal> rows;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const std::span<const Refusal> own = technique->refusals();
    rows.insert(rows.end(), own.begin(), own.end());
  }
  return rows;
}

std::optional<RankUnits> UnitsOfRank(const JobSpec& job) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (auto units = technique->UnitsOfRank(job)) return units;
  }
  return std::nullopt;
}

void NarrowTo(const RankUnits& units, ModelSpec& model) {
  const int64_t group = model.heads / KvHeads(model);
  model.head_width = HeadWidth(model);
  if (model.kv_heads > 0) model.kv_heads = units.kv_heads;
  model.heads = group * units.kv_heads;
  model.mlp_width = units.neurons;
}

ComputedShares ComputedSharesOf(const ModelSpec& model, int64_t sequences) {
  const auto mean = [&](SubLayer sub_layer) {
    if (model.layers == 0) return 1.0;
    double sum = 0;
    for (int64_t layer = 0; layer < model.layers; ++layer) {
      double share = 1;
      for (const TechniqueCost* technique : TechniqueCosts()) {
        share *= technique->ComputedShare(model, sub_layer, layer, sequences);
      }
      sum += share;
    }
    return sum / static_cast<double>(model.layers);
  };
  return {mean(SubLayer::kAttention), mean(SubLayer::kMlp)};
}

ComputedShares ComputedSharesOf(const ModelShape& shape, int64_t sequences) {
  if (shape.computed.attention == 1 && shape.computed.mlp == 1) return shape.computed;
  ModelSpec network = shape.spec;
  network.layers = shape.network_layers;
  return ComputedSharesOf(network, sequences);
}

ModelSpec DeepestModel(const ModelSpec& model, const TrainSpec& train) {
  ModelSpec deepest = model;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    technique->SetDeepest(train, deepest);
  }
  return deepest;
}

bool ChangesBranches(const ModelSpec& model) {
  return BranchScalingOf(model) != BranchScaling::kNone ||
         std::any_of(
             TechniqueCosts().begin(), TechniqueCosts().end(),
             [&](const TechniqueCost* technique) { return technique->ChangesBranches(model); });
}

double TrainedPasses(const ModelSpec& model, const TrainSpec& train) {
  double passes = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    passes += technique->TrainedPasses(model, train);
  }
  return passes;
}

bool GathersAsHeld(const TrainSpec& train, const ParameterInfo& weight) {
  return std::any_of(
      TechniqueCosts().begin(), TechniqueCosts().end(),
      [&](const TechniqueCost* technique) { return technique->GathersAsHeld(train, weight); });
}

std::vector<std::string> TechniquePrecisions() {
  std::vector<std::string> names;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (technique->precision() != nullptr) names.emplace_back(technique->precision()->name);
  }
  return names;
}

void SetPrecision(JobSpec& job, const std::string& precision) {
  job.train.precision = precision;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const PrecisionRecipe* own = technique->precision();
    if (own != nullptr && own->name != precision) technique->ForgetPrecision(job);
  }
}

std::string TechniqueRateName(std::string_view rate_name, GemmPass pass, DType products) {
  const std::string_view name = pass == GemmPass::kForward         ? "forward_"
                                : pass == GemmPass::kInputGradient ? "input_gradient_"
                                                                   : "weight_gradient_";
  return std::string(rate_name) + std::string(name) + std::string(GemmRateName(products));
}

TechniqueProducts TechniqueProductsOf(const TrainSpec& train, ComputeUnits units) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const TechniqueProducts products = technique->ProductsOf(train, units);
    if (products.any()) return products;
  }
  return {};
}

StepWork StepWorkOf(const ModelShape& shape, const TrainSpec& train) {
  StepWork work;
  for (const TechniqueCost* technique : TechniqueCosts())
    technique->AddStepWork(shape, train, work);
  return work;
}

StepWork MergeWorkOf(const ModelSpec& model) {
  StepWork work;
  for (const TechniqueCost* technique : TechniqueCosts()) technique->AddMergeWork(model, work);
  return work;
}

std::optional<AddedNetwork> AddedNetworkOf(const TrainSpec& train) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (const std::optional<AddedNetwork> added = technique->AddedNetworkOf(train)) return added;
  }
  return std::nullopt;
}

void SetAddedNetwork(TrainSpec& train, const ModelSpec& network) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    technique->SetAddedNetwork(train, network);
  }
}

bool KeepsOwnLogits(const TrainSpec& train) {
  return std::any_of(
      TechniqueCosts().begin(), TechniqueCosts().end(),
      [&](const TechniqueCost* technique) { return technique->KeepsOwnLogits(train); });
}

int64_t ScoringPasses(const TrainSpec& train) {
  int64_t passes = 0;
  for (const TechniqueCost* technique : TechniqueCosts()) passes += technique->ScoringPasses(train);
  return passes;
}

int64_t LeastMicroBatches(const JobSpec& job) {
  int64_t least = 1;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    least = std::max(least, technique->LeastMicroBatches(job));
  }
  return least;
}

std::vector<JobSpec> JointJobs(const JobSpec& job) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::vector<JobSpec> jobs = technique->JointJobs(job);
    if (!jobs.empty()) return jobs;
  }
  return {};
}

std::vector<DataList> DataLists(JobSpec& job) {
  std::vector<DataList> lists = {{"data.train", &job.data.train},
                                 {"data.validation", &job.data.validation}};
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const std::vector<DataList> more = technique->DataLists(job);
    lists.insert(lists.end(), more.begin(), more.end());
  }
  return lists;
}

int64_t JointParts(const JobSpec& job) {
  return std::max<int64_t>(std::ssize(JointJobs(job)), 1);
}

std::vector<StateName> ExportedAverages(const JobSpec& job, int64_t updates) {
  if (job.optimizer.name == "schedule_free_adamw" && updates > 0) {
    return {{job.optimizer.name + "/", "/average"}};
  }
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::vector<StateName> names = technique->ExportedAverages(job, updates);
    if (!names.empty()) return names;
  }
  return {};
}

std::optional<ExportedMask> ExportedMasks(const JobSpec& job, int64_t steps) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::optional<ExportedMask> mask = technique->ExportedMasks(job, steps);
    if (mask) return mask;
  }
  return std::nullopt;
}

std::string PartOfTraining(const JobSpec& job, int64_t step,
                           const std::map<std::string, double>& metrics) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::string part = technique->PartOfTraining(job, step, metrics);
    if (!part.empty()) return part;
  }
  return "";
}

std::optional<ExportedTicket> TicketOf(const ModelSpec& model) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::optional<ExportedTicket> ticket = technique->Ticket(model);
    if (ticket) return ticket;
  }
  return std::nullopt;
}

std::optional<ModelSpec> SubNetworkOf(const JobSpec& job) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    std::optional<ModelSpec> network = technique->SubNetworkOf(job);
    if (network) return network;
  }
  return std::nullopt;
}

std::optional<SecondPass> SecondPassOf(const ModelSpec& model, const TrainSpec& train) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const std::optional<SecondPass> pass = technique->SecondPassOf(model, train);
    if (pass) return pass;
  }
  return std::nullopt;
}

}  // namespace weft
