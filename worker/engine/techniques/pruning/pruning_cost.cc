#include "worker/engine/techniques/pruning/pruning_cost.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/glob.h"
#include "common/model/model_sizes.h"
#include "common/model/name_patterns.h"
#include "common/model/parameter_list.h"
#include "common/model/precision.h"
#include "common/model/technique_cost.h"
#include "common/spec/features.h"
#include "common/text.h"

namespace weft {

// Techniques before this one in the registry.
const TechniqueCost& OverParameterizationTechniqueCost();
const TechniqueCost& Sparse24TechniqueCost();
const TechniqueCost& StructuredMatricesTechniqueCost();
const TechniqueCost& StructuredPruningTechniqueCost();
const TechniqueCost& AveragingTechniqueCost();

namespace {

using namespace features;

bool Prunes(const JobSpec& job) {
  return job.train.pruning.method != "none";
}

std::string ShownMethod(const JobSpec& job) {
  return "train.pruning.method " + job.train.pruning.method;
}

/// Whether some matrix may have sparse products, however few of its weights are kept: at the end of
/// a training, or by its shape. The same on every device: the one that a job gets may not be known
/// when it is submitted.
bool MayHaveSparseProducts(const JobSpec& job) {
  if (!Prunes(job) || job.train.pruning.density >= 1) return false;
  const PrecisionRecipe* const precision = FindPrecision(job.train.precision);
  return precision != nullptr && MayUseSparseProducts(job.train) &&
         UsesSparseProducts(job.train.pruning, precision->products, 0, ComputeUnits::kCpuVector);
}

const Feature kPruning = {
    .name = "pruning", .setting = "train.pruning", .asked = Prunes, .shown = ShownMethod};

const Feature kSettings[] = {
    {.name = "pruning by a global ranking",
     .setting = "train.pruning.distribution global",
     .asked =
         [](const JobSpec& job) {
           return Prunes(job) && job.train.pruning.distribution == "global";
         },
     .shown = [](const JobSpec&) { return std::string("train.pruning.distribution global"); }},
    {.name = "dynamic sparse training",
     .setting = "train.pruning.method set or rigl",
     .asked = [](const JobSpec& job) { return ExchangesWeights(job.train.pruning); },
     .shown = ShownMethod},
    {.name = "SynFlow",
     .setting = "train.pruning.method synflow",
     .asked = [](const JobSpec& job) { return job.train.pruning.method == "synflow"; },
     .shown = ShownMethod},
    {.name = "GraSP",
     .setting = "train.pruning.method grasp",
     .asked = [](const JobSpec& job) { return job.train.pruning.method == "grasp"; },
     .shown = ShownMethod},
    {.name = "lottery tickets",
     .setting = "train.pruning.method lottery_ticket",
     .asked = [](const JobSpec& job) { return job.train.pruning.method == "lottery_ticket"; },
     .shown = ShownMethod},
    {.name = "pruning from random masks",
     .setting = "train.pruning.method random, set or rigl",
     .asked =
         [](const JobSpec& job) {
           const PruningSpec& spec = job.train.pruning;
           return spec.method == "random" || ExchangesWeights(spec);
         },
     .shown = ShownMethod},
    {.name = "products of kept weights alone",
     .setting = "train.pruning.products sparse, or auto in fp32",
     .asked = MayHaveSparseProducts,
     .shown =
         [](const JobSpec& job) { return "train.pruning.products " + job.train.pruning.products; }},
};
const Feature& kGlobalRanking = kSettings[0];
const Feature& kDynamic = kSettings[1];
const Feature& kSynFlow = kSettings[2];
const Feature& kGrasp = kSettings[3];
const Feature& kLotteryTicket = kSettings[4];
const Feature& kRandomMasks = kSettings[5];
const Feature& kSparseProducts = kSettings[6];

constexpr std::string_view kWholeNetwork = "a rank has a part of the matrices";
constexpr std::string_view kPerMatrix = "train.pruning.distribution uniform or erk";

Status CheckRounds(const PruningSpec& spec, int64_t steps) {
  const LotteryRounds rounds = LotteryRoundsOf(spec, steps);
  if (rounds.Length() > 0 && rounds.AllSteps() == steps) return OkStatus();
  LotteryRounds longer = rounds;
  longer.steps = std::max(rounds.steps, rounds.rewind_step) + 1;
  return InvalidError(
      "train.steps " + std::to_string(steps) + " are no first training with " +
      std::to_string(rounds.rounds) + " rounds that go back to train.pruning.rewind_step " +
      std::to_string(rounds.rewind_step) + " and are as long from there on; hint: train.steps " +
      std::to_string(longer.AllSteps()) + "; each training then has " +
      std::to_string(longer.steps));
}

Status CheckRestart(const JobSpec& job) {
  const PruningSpec& spec = job.train.pruning;
  if (spec.restart == "rewind") return OkStatus();
  if (spec.method != "lottery_ticket") {
    return InvalidError("train.pruning.restart is of train.pruning.method lottery_ticket, not of " +
                        spec.method);
  }
  if (spec.rewind_step > 0) {
    return InvalidError(
        "train.pruning.restart reinitialize begins the last round with weights of step 0, not of "
        "train.pruning.rewind_step " +
        std::to_string(spec.rewind_step) + "; hint: train.pruning.rewind_step 0");
  }
  if (job.model.import_path.empty() && !FreezesAny(job.model)) return OkStatus();
  return InvalidError(
      "train.pruning.restart reinitialize draws all weights anew, and those that are imported or "
      "frozen have to stay; hint: train.pruning.restart rewind");
}

/// The share of the steps with dense products: those of a lottery ticket's trainings that keep too
/// many weights; with other methods the step in which weights are chosen.
double DenseShare(const TrainSpec& train, ComputeUnits units) {
  const PruningSpec& spec = train.pruning;
  const auto steps = static_cast<double>(train.steps);
  if (spec.method != "lottery_ticket") return 1 / steps;
  const LotteryRounds rounds = LotteryRoundsOf(spec, train.steps);
  const DType compute = PrecisionOf(train.precision).products;
  for (int64_t round = 1; round <= rounds.rounds; ++round) {
    const double power = static_cast<double>(round) / static_cast<double>(rounds.rounds);
    if (!UsesSparseProducts(spec, compute, std::pow(spec.density, power), units)) continue;
    return static_cast<double>(rounds.steps + (round - 1) * rounds.Length()) / steps;
  }
  return 1;
}

/// Those of cuSPARSE. A device has two matrices in CSR: of each kept weight a value, a column and
/// the place to take the value from.
TechniqueProducts ProductsInCsr(const TrainSpec& train, DType compute) {
  const double density = train.pruning.density;
  const bool is_f32 = compute == DType::kF32;
  // Estimated, not measured: the density at which they take as long as dense ones. In fp32 it is
  // what Gale et al. 2020 (arXiv 2006.10901) report of the vendor's library on a V100, from memory:
  // 14 times fewer elements than 0.29. Tensor cores multiply dense matrices of 16 bits some 15
  // times as fast, while CSR reads half as many bytes of values and of the dense matrix.
  const double even = is_f32 ? 0.02 : 0.0025;
  constexpr double kLeast = 0.1;
  const double share = std::max(kLeast, density / even);
  const double dense_share = DenseShare(train, ComputeUnits::kCuda);
  const auto held = static_cast<double>(ElementBytes(PrecisionOf(train.precision).matrices));
  const auto computed = static_cast<double>(ElementBytes(compute));
  // The third product, the gradient of the weights, is dense.
  return {.operand_bytes = 2 * density * (computed + 4 + 4),
          .dense_share = dense_share,
          .uploads_at_once = true,
          .brings_weights = true,
          .brought_bytes = (1 - dense_share) * (held - computed),
          .attention = true,
          .seconds_share = (2 * share + 1) / 3};
}

/// Seconds of a product on a CPU with a matrix of that density, in those of a dense one: packing
/// and unpacking of what is multiplied, and a multiply-add of a list against a dense one
/// (docs/benchmarks/pruned_products.md).
double ShareOfDenseSeconds(double density) {
  constexpr double kFixedSeconds = 0.2, kSecondsOfKept = 1.7;
  return kFixedSeconds + kSecondsOfKept * density;
}

/// How often ranks gather a matrix in a step, in the mean, by what they have parts of
/// (RankedNumbers).
struct Gathers {
  double of_gradients = 0;
  double of_values = 0;
  double of_scores = 0;
};

Gathers GathersOf(const TrainSpec& train) {
  const PruningSpec& spec = train.pruning;
  const auto steps = static_cast<double>(train.steps);
  if (ExchangesWeights(spec)) {
    const double last = std::min(spec.stop_ratio * steps, steps - 1);
    const double exchanges = std::floor(last / static_cast<double>(spec.interval)) / steps;
    const double gradients = spec.method == "rigl" ? exchanges : 0;
    return {.of_gradients = gradients, .of_values = exchanges, .of_scores = gradients + exchanges};
  }
  if (spec.method == "random") return {};
  const double choices = spec.method == "lottery_ticket"
                             ? static_cast<double>(PruningRounds(spec)) / steps
                             : 1 / steps;
  // Scores of gradients are cut as these are. GraSP moves values along the gradient, which is whole
  // where values are; with ZeRO 3 it gathers once less.
  const double gradients = spec.method == "grasp" ? 2 : spec.method == "snip" ? 1 : 0;
  return {.of_gradients = gradients * choices,
          .of_values = gradients > 0 ? 0 : choices,
          .of_scores = choices};
}

bool PrunesAny(const JobSpec& job) {
  for (int64_t block = 0; block < DistinctBlocks(job.model); ++block) {
    for (const ParameterInfo& parameter : PlainBlockParameters(job.model, block)) {
      if (IsPruned(job.train.pruning, parameter, parameter.name)) return true;
    }
  }
  return false;
}

class PruningCost : public TechniqueCost {
 public:
  std::string_view name() const override { return "pruning"; }

  const Feature& feature() const override { return kPruning; }
  std::span<const Feature> settings() const override { return kSettings; }
  std::span<const Refusal> refusals() const override {
    static const Refusal rows[] = {
        {&kPruning, &kOffloadParameters,
         "weights are ranked and masked all at once, not as units of them come",
         "resources.offload_parameters none"},
        {&kPruning, &kDelayedUpdate, "masks would be chosen in weights that are being updated",
         "resources.delayed_update false"},
        {&kPruning, &kReplay, kPlainPasses, kOneOfTwo},
        {&kPruning, &kMeshDeterminism, kOtherBits, kOneOfTwo},
        {&kPruning, &kLocalSteps, "each rank would choose other weights", kOneOfTwo},
        {&kPruning, &OverParameterizationTechniqueCost().feature(),
         "masks would have to be those of weights that are made of factors", kOneOfTwo},
        {&kPruning, &Sparse24TechniqueCost().feature(),
         "each leaves out weights by masks of its own", kOneOfTwo},
        {&kPruning, &StructuredMatricesTechniqueCost().feature(),
         "structured matrices are in the place of the weights that masks are of", kOneOfTwo},
        {&kPruning, &StructuredPruningTechniqueCost().feature(),
         "each leaves weights out by masks of its own", kOneOfTwo},
        {&kSparseProducts, &kZeroParameters,
         "lists of kept weights are made once, of matrices that stay on the rank",
         "train.pruning.products dense, or resources.zero_stage 2"},
        {&kGlobalRanking, &kPipelineParallel, kWholeNetwork, kPerMatrix},
        {&kGlobalRanking, &kExpertParallel, kWholeNetwork, kPerMatrix},
        {&kGlobalRanking, &kRandomMasks, "the method has no scores to rank all matrices by",
         kPerMatrix},
        {&kDynamic, &AveragingTechniqueCost().feature(),
         "averages would be of weights that come and go", kOneOfTwo},
        {&kSynFlow, &kPipelineParallel, kWholeNetwork, "another train.pruning.method"},
        {&kSynFlow, &kExpertParallel, kWholeNetwork, "another train.pruning.method"},
        {&kGrasp, &kBf16Pure, "weights in bf16 are too coarse for differences of gradients",
         "train.precision bf16"},
        {&kLotteryTicket, &AveragingTechniqueCost().feature(),
         "averages would be of several trainings", kOneOfTwo},
        {&kLotteryTicket, &kScheduleFree, "its averages would be of several trainings",
         "another optimizer"},
        {&kLotteryTicket, &kSpikeGuard, "the loss jumps where a round begins",
         "train.guard.spike_deviations 0"},
    };
    return rows;
  }

  Status Check(const JobSpec& job) const override {
    const PruningSpec& spec = job.train.pruning;
    WEFT_RETURN_IF_ERROR(CheckRestart(job));
    if (!Asked(job)) {
      if (spec.layers.empty()) return OkStatus();
      return InvalidError("train.pruning.layers needs a train.pruning.method; hint: rigl");
    }
    WEFT_RETURN_IF_ERROR(CheckMatrixPatterns("train.pruning.layers", spec.layers, job.model,
                                             /*trained=*/true));
    // The sizes of an imported network are not known yet.
    if (job.model.import_path.empty() && !PrunesAny(job)) {
      return InvalidError(
          "train.pruning has nothing to prune: model.freeze leaves no matrix to train");
    }
    return spec.method == "lottery_ticket" ? CheckRounds(spec, job.train.steps) : OkStatus();
  }

  // The gradient is read and written, and the mask read: a byte a weight.
  void AddStepWork(const ModelShape& shape, const TrainSpec& train, StepWork& work) const override {
    if (train.pruning.method == "none") return;
    const Gathers gathers = GathersOf(train);
    for (const ParameterInfo& parameter :
         ParametersOfRank(shape.spec, shape.tensor, shape.tensor_rows)) {
      if (!IsPruned(train.pruning, parameter, parameter.name)) continue;
      const auto weights = static_cast<double>(parameter.Elements());
      work.f32_numbers += 2.25 * weights;
      const MatrixNumbers matrix = {.numbers = weights, .matrices = 1};
      work.ranked.gradients.Add(matrix, gathers.of_gradients);
      work.ranked.values.Add(matrix, gathers.of_values);
      work.ranked.scores.Add(matrix, gathers.of_scores);
    }
  }

  // On a CPU both products with a weight have a list of the columns that count: of each a value in
  // f32 and two bytes, but one of the latter for two neighbours in a column, and heads of the
  // lists.
  TechniqueProducts ProductsOf(const TrainSpec& train, ComputeUnits units) const override {
    const PruningSpec& spec = train.pruning;
    if (spec.method == "none") return {};
    const DType compute = PrecisionOf(train.precision).products;
    if (!MayUseSparseProducts(train) || !UsesSparseProducts(spec, compute, spec.density, units)) {
      return {.uploads_at_once = true};
    }
    if (units == ComputeUnits::kCuda) return ProductsInCsr(train, compute);
    constexpr double kHeads = 0.035;
    const double share = ShareOfDenseSeconds(spec.density);
    return {.operand_bytes = 2 * (spec.density * (4 + 2 - spec.density) + kHeads),
            .dense_share = DenseShare(train, units),
            .uploads_at_once = true,
            .brings_weights = true,
            .attention = true,
            .rate_name = kCsrRates,
            .seconds_share = share,
            .measured_share = share / ShareOfDenseSeconds(kCsrRatesDensity)};
  }

  std::optional<JobSpec> WithoutProducts(const JobSpec& job) const override {
    const PruningSpec& spec = job.train.pruning;
    const PrecisionRecipe* const precision = FindPrecision(job.train.precision);
    if (precision == nullptr || !MayUseSparseProducts(job.train) ||
        !UsesSparseProducts(spec, precision->products, spec.density, ComputeUnits::kCpuVector)) {
      return std::nullopt;
    }
    JobSpec dense = job;
    dense.train.pruning.products = "dense";
    return dense;
  }
  std::string_view InsteadOfSlowProducts() const override { return "train.pruning.products dense"; }
  bool KeepsSlowProducts() const override { return true; }

  // The weights to go back to, in f32.
  int64_t StateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    return job.train.pruning.method == "lottery_ticket" ? 4 * parameter.Elements() : 0;
  }
  // A byte for each weight: whether it is kept.
  int64_t ReplicatedStateBytes(const JobSpec& job, const ParameterInfo& parameter) const override {
    const bool pruned = Asked(job) && IsPruned(job.train.pruning, parameter, parameter.name);
    return pruned ? parameter.Elements() : 0;
  }
  bool StateDiffersByBlock(const JobSpec& job) const override {
    return !job.train.pruning.layers.empty();
  }

  std::string PartOfTraining(const JobSpec& job, int64_t step,
                             const std::map<std::string, double>& metrics) const override {
    if (job.train.pruning.method != "lottery_ticket") return "";
    const LotteryRounds rounds = LotteryRoundsOf(job.train.pruning, job.train.steps);
    const int64_t round = rounds.RoundOf(step);
    const int64_t first = round == 0 ? 0 : rounds.steps + (round - 1) * rounds.Length();
    std::string text =
        round == 0 ? "first training"
                   : "round " + std::to_string(round) + " of " + std::to_string(rounds.rounds);
    text += ", step " + std::to_string(step - first + 1) + " of " +
            std::to_string(round == 0 ? rounds.steps : rounds.Length());
    const auto density = metrics.find(std::string(kDensityMetric));
    if (density == metrics.end()) return text;
    return text + FormatNumber(", density %.1f%%", 100 * density->second);
  }

  std::vector<TechniqueMetric> Metrics() const override {
    return {{kDensityMetric, "Share of the weights of pruned matrices that is kept."},
            {kGrownMetric,
             "Share of the kept weights that this step has grown anew; absent in other steps."}};
  }
};

}  // namespace

const TechniqueCost& PruningTechniqueCost() {
  static const PruningCost cost;
  return cost;
}

bool IsExchangeStep(const PruningSpec& spec, int64_t step, int64_t steps) {
  return ExchangesWeights(spec) && step > 0 && step % spec.interval == 0 &&
         static_cast<double>(step) <= spec.stop_ratio * static_cast<double>(steps);
}

double DropRate(const PruningSpec& spec, int64_t step, int64_t steps) {
  const double stop = spec.stop_ratio * static_cast<double>(steps);
  if (static_cast<double>(step) >= stop) return 0;
  return spec.drop_rate / 2 * (1 + std::cos(std::numbers::pi * static_cast<double>(step) / stop));
}

int64_t PruningRounds(const PruningSpec& spec) {
  if (spec.rounds > 0) return spec.rounds;
  if (spec.method == "synflow") return 100;
  // A round keeps 0.8 of the weights. The last term leaves out a round that only rounding adds.
  return std::llround(std::ceil(std::log(spec.density) / std::log(0.8) - 1e-9));
}

LotteryRounds LotteryRoundsOf(const PruningSpec& spec, int64_t steps) {
  const int64_t rounds = PruningRounds(spec);
  return {.rounds = rounds,
          .steps = (steps + rounds * spec.rewind_step) / (rounds + 1),
          .rewind_step = spec.rewind_step};
}

bool MayUseSparseProducts(const TrainSpec& train) {
  return train.pruning.method != "none" && train.pruning.products != "dense" &&
         PrecisionOf(train.precision).block_products == nullptr;
}

bool UsesSparseProducts(const PruningSpec& spec, DType compute, double density,
                        ComputeUnits units) {
  if (density >= 1) return false;
  if (spec.products == "sparse") return true;
  // With more, the lists of what is kept cost what they save. In bf16 dense products have
  // instructions of their own on some processors, and on AMX in f32, too. On GPUs nothing is
  // measured. There they have to be asked for.
  // The kept weights of a matrix are a whole number: a little more than the share asked for.
  constexpr double kDensest = 0.3 + 1e-3;
  return spec.products == "auto" && units == ComputeUnits::kCpuVector && compute == DType::kF32 &&
         density <= kDensest;
}

bool IsPruned(const PruningSpec& spec, const ParameterAttributes& parameter,
              std::string_view name) {
  if (!parameter.block_matrix() || parameter.frozen) return false;
  return spec.layers.empty() || MatchesAny(spec.layers, name);
}

std::vector<PrunedMatrix> PrunedMatricesOf(const PruningSpec& spec, const ModelSpec& model) {
  std::vector<PrunedMatrix> matrices;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!IsPruned(spec, parameter, parameter.name)) continue;
    matrices.push_back({parameter.name, parameter.shape[0], parameter.shape[1]});
  }
  SetKept(spec.density, spec.distribution == "erk", matrices);
  return matrices;
}

void SetKept(double density, bool erk, std::span<PrunedMatrix> matrices) {
  const auto sides = [](const PrunedMatrix& m) { return static_cast<double>(m.rows + m.columns); };
  const auto raw = [&](const PrunedMatrix& m) {
    return sides(m) / static_cast<double>(m.Weights());
  };
  std::vector<bool> dense(matrices.size(), false);
  double scale = 0;
  while (erk) {
    double left = 0, sum = 0, most = 0;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const auto weights = static_cast<double>(matrices[i].Weights());
      left += (dense[i] ? density - 1 : density) * weights;
      if (dense[i]) continue;
      sum += sides(matrices[i]);
      most = std::max(most, raw(matrices[i]));
    }
    if (sum == 0) break;
    scale = left / sum;
    if (scale * most <= 1) break;
    for (size_t i = 0; i < matrices.size(); ++i) dense[i] = dense[i] || raw(matrices[i]) == most;
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    PrunedMatrix& matrix = matrices[i];
    const double share = dense[i] ? 1 : erk ? scale * raw(matrix) : density;
    const int64_t kept = std::llround(share * static_cast<double>(matrix.Weights()));
    matrix.kept = std::clamp<int64_t>(kept, 1, matrix.Weights());
  }
}

}  // namespace weft
