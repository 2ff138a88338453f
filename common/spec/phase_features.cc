// Features of the phases of a job, and of how the model of one grows from that before.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/feature_text.h"
#include "common/spec/features.h"
#include "common/spec/phases.h"

namespace weft::features {
namespace {

// The planner asks often: views of literals compare by length first.
using std::string_view_literals::operator""sv;

/// The first phase that `asks`; null: none.
template <class Asks>
const PhaseSpec* FindPhase(const JobSpec& job, Asks asks) {
  const auto found = std::find_if(job.phases.begin(), job.phases.end(), asks);
  return found == job.phases.end() ? nullptr : &*found;
}

bool Searches(const PhaseSpec& phase) {
  return phase.search.steps > 0;
}

bool IsMultiLevel(const PhaseSpec& phase) {
  return phase.growth.method == "coalesce"sv || phase.growth.method == "decoalesce"sv;
}

bool IsLearned(const PhaseSpec& phase) {
  return phase.growth.method == "ligo"sv;
}

/// Whether the phase grows by a method other than stacking.
bool GrowsWithoutStacking(const PhaseSpec& phase) {
  return phase.growth.method != "none"sv && phase.growth.method != "stack"sv;
}

bool MakesOtherBlocks(const PhaseSpec& phase) {
  return phase.growth.new_blocks != "copy"sv;
}

bool MakesIdentityBlocks(const PhaseSpec& phase) {
  return phase.growth.new_blocks == "identity"sv;
}

bool FreezesOld(const PhaseSpec& phase) {
  return phase.growth.freeze_old;
}

/// growth.optimizer_state; of sparkling, whose copies would stay equal without it, what auto means.
/// Other methods do without where the optimizer has none to keep.
std::string_view GrownState(const PhaseSpec& phase) {
  const GrowthSpec& growth = phase.growth;
  if (growth.method == "none"sv) return "new";
  return growth.method == "sparkling"sv ? OptimizerStateOf(growth)
                                        : std::string_view(growth.optimizer_state);
}

bool KeepsAsymmetricState(const PhaseSpec& phase) {
  return GrownState(phase) == "asymmetric"sv;
}

bool KeepsState(const PhaseSpec& phase) {
  return GrownState(phase) == "kept"sv || KeepsAsymmetricState(phase);
}

std::string ShownMethod(const PhaseSpec& phase) {
  return Shown("phases[].growth.method", phase.growth.method);
}

std::string ShownState(const PhaseSpec& phase) {
  return "phases[].growth.optimizer_state " + std::string(GrownState(phase));
}

std::string ShownNewBlocks(const PhaseSpec& phase) {
  return Shown("phases[].growth.new_blocks", phase.growth.new_blocks);
}

int64_t LayersOf(const JobSpec& job, const PhaseSpec& phase) {
  return phase.layers >= 0 ? phase.layers : job.model.layers;
}

int64_t WidthOf(const JobSpec& job, const PhaseSpec& phase) {
  return phase.width > 0 ? phase.width : job.model.width;
}

int64_t ImageSizeOf(const JobSpec& job, const PhaseSpec& phase) {
  return phase.image_size > 0 ? phase.image_size : job.model.image_size;
}

bool GrowsAtAll(const PhaseSpec& phase) {
  return phase.growth.method != "none"sv;
}

/// Masked columns leave the logits as they are.
bool GrowsByCopies(const PhaseSpec& phase) {
  return GrowsAtAll(phase) && phase.growth.method != "msg"sv;
}

using SizeOfPhase = int64_t (*)(const JobSpec& job, const PhaseSpec& phase);

/// The first phase that `counts` and whose size is not that of the phase before it; null: none.
const PhaseSpec* FindOther(SizeOfPhase size, const JobSpec& job,
                           bool (*counts)(const PhaseSpec& phase)) {
  for (size_t i = 1; i < job.phases.size(); ++i) {
    const PhaseSpec& phase = job.phases[i];
    if (size(job, job.phases[i - 1]) != size(job, phase) && counts(phase)) return &phase;
  }
  return nullptr;
}

std::string ShownOther(std::string_view field, SizeOfPhase size, const JobSpec& job,
                       bool (*counts)(const PhaseSpec& phase)) {
  return Shown(field, size(job, *FindOther(size, job, counts)));
}

bool IsAny(const PhaseSpec&) {
  return true;
}

/// The first technique that is asked for and gives the network tensors in place of weights or
/// besides them, or makes exports of a smaller one; null: none.
const TechniqueCost* TechniqueOfTensors(const JobSpec& job) {
  ModelSpec model = job.model;
  if (model.vocab_size == 0) model.vocab_size = kVocabularyTile;
  if (model.classes == 0) model.classes = kVocabularyTile;
  std::vector<ParameterInfo> parameters;
  for (const TechniqueCost* technique : TechniqueCosts()) {
    if (!technique->Asked(job)) continue;
    if (parameters.empty()) parameters = PlainParametersOf(model);
    const bool has_own =
        std::any_of(parameters.begin(), parameters.end(), [&](const ParameterInfo& parameter) {
          if (!technique->SourcesOf(model, parameter).empty()) return true;
          if (parameter.grafted_weight() && !technique->GraftsOf(model, parameter).empty()) {
            return true;
          }
          if (parameter.matrix() && !technique->AdaptersOf(model, parameter).empty()) return true;
          return parameter.block >= 0 && parameter.matrix() &&
                 (!technique->ReplacementsOf(model, parameter).empty() ||
                  technique->QuantizedWordsOf(model, parameter, parameter.Elements()) > 0);
        });
    if (has_own || technique->Ticket(model) || !technique->EmbeddingGraftsOf(model).empty()) {
      return technique;
    }
  }
  return nullptr;
}

/// The first technique that is asked for and does not just follow the weights, as averages do;
/// null: none.
const TechniqueCost* TechniqueOfSteps(const JobSpec& job) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    const bool averages = !technique->ExportedAverages(job, job.train.steps).empty();
    if (technique->Asked(job) && !averages) return technique;
  }
  return nullptr;
}

}  // namespace

const Feature kPhases = {
    .name = "phases",
    .setting = "phases",
    .asked = [](const JobSpec& job) { return !job.phases.empty() && !IsOfGrownPhase(job); },
    .shown = [](const JobSpec&) { return std::string("phases"); },
    .of_phases = true};

const Feature kOtherTensors = {
    .name = "tensors in place of weights or besides them",
    .setting = "model, with a technique that gives the network tensors of its own",
    .asked = [](const JobSpec& job) { return TechniqueOfTensors(job) != nullptr; },
    .shown = [](const JobSpec& job) { return TechniqueOfTensors(job)->feature().shown(job); }};

const Feature kPhaseSearch = {
    .name = "search for the size of a phase",
    .setting = "phases[].search.steps",
    .asked = [](const JobSpec& job) { return FindPhase(job, Searches) != nullptr; },
    .shown =
        [](const JobSpec& job) {
          return Shown("phases[].search.steps", FindPhase(job, Searches)->search.steps);
        },
    .of_phases = true};

const Feature kSearchedTechniques = {
    .name = "techniques other than averages of the weights",
    .setting = "model or train, with any technique except averages of the weights",
    .asked = [](const JobSpec& job) { return TechniqueOfSteps(job) != nullptr; },
    .shown = [](const JobSpec& job) { return TechniqueOfSteps(job)->feature().shown(job); }};

const Feature kMultiLevelGrowth = {
    .name = "multi-level training",
    .setting = "phases[].growth.method coalesce or decoalesce",
    .asked = [](const JobSpec& job) { return FindPhase(job, IsMultiLevel) != nullptr; },
    .shown = [](const JobSpec& job) { return ShownMethod(*FindPhase(job, IsMultiLevel)); },
    .of_phases = true};

const Feature kLearnedGrowth = {
    .name = "learned growth (LiGO)",
    .setting = "phases[].growth.method ligo",
    .asked = [](const JobSpec& job) { return FindPhase(job, IsLearned) != nullptr; },
    .shown = [](const JobSpec& job) { return ShownMethod(*FindPhase(job, IsLearned)); },
    .of_phases = true};

const Feature kGrowthOtherThanStack = {
    .name = "growth by another method than stack",
    .setting = "phases[].growth.method other than none and stack",
    .asked = [](const JobSpec& job) { return FindPhase(job, GrowsWithoutStacking) != nullptr; },
    .shown = [](const JobSpec& job) { return ShownMethod(*FindPhase(job, GrowsWithoutStacking)); },
    .of_phases = true};

const Feature kGrowthOfDepth = {
    .name = "growth in depth",
    .setting = "phases[].layers other than that of the phase before",
    .asked = [](const JobSpec& job) { return FindOther(LayersOf, job, GrowsAtAll) != nullptr; },
    .shown =
        [](const JobSpec& job) { return ShownOther("phases[].layers", LayersOf, job, GrowsAtAll); },
    .of_phases = true};

const Feature kGrowthOfWidth = {
    .name = "growth in width",
    .setting = "phases[].width other than that of the phase before",
    .asked = [](const JobSpec& job) { return FindOther(WidthOf, job, GrowsAtAll) != nullptr; },
    .shown =
        [](const JobSpec& job) { return ShownOther("phases[].width", WidthOf, job, GrowsAtAll); },
    .of_phases = true};

const Feature kGrowthOfWidthByCopies = {
    .name = "growth in width without masks",
    .setting =
        "phases[].width other than that of the phase before, by another growth.method than msg",
    .asked = [](const JobSpec& job) { return FindOther(WidthOf, job, GrowsByCopies) != nullptr; },
    .shown =
        [](const JobSpec& job) {
          return ShownOther("phases[].width", WidthOf, job, GrowsByCopies);
        },
    .of_phases = true};

const Feature kOtherImages = {
    .name = "images of another size",
    .setting = "phases[].image_size other than that of the phase before",
    .asked = [](const JobSpec& job) { return FindOther(ImageSizeOf, job, IsAny) != nullptr; },
    .shown =
        [](const JobSpec& job) {
          return ShownOther("phases[].image_size", ImageSizeOf, job, IsAny);
        },
    .of_phases = true};

const Feature kNewBlocksNotCopied = {
    .name = "added blocks that are no plain copies",
    .setting = "phases[].growth.new_blocks other than copy",
    .asked = [](const JobSpec& job) { return FindPhase(job, MakesOtherBlocks) != nullptr; },
    .shown = [](const JobSpec& job) { return ShownNewBlocks(*FindPhase(job, MakesOtherBlocks)); },
    .of_phases = true};

const Feature kIdentityBlocks = {
    .name = "added blocks that change nothing at first",
    .setting = "phases[].growth.new_blocks identity",
    .asked = [](const JobSpec& job) { return FindPhase(job, MakesIdentityBlocks) != nullptr; },
    .shown =
        [](const JobSpec& job) { return ShownNewBlocks(*FindPhase(job, MakesIdentityBlocks)); },
    .of_phases = true};

const Feature kFreezeOld = {
    .name = "training of the added blocks alone",
    .setting = "phases[].growth.freeze_old",
    .asked = [](const JobSpec& job) { return FindPhase(job, FreezesOld) != nullptr; },
    .shown = [](const JobSpec&) { return std::string("phases[].growth.freeze_old"); },
    .of_phases = true};

const Feature kKeptGrowthState = {
    .name = "growth that keeps the state of the optimizer",
    .setting =
        "phases[].growth.optimizer_state kept or asymmetric, or growth.method sparkling with auto",
    .asked = [](const JobSpec& job) { return FindPhase(job, KeepsState) != nullptr; },
    .shown = [](const JobSpec& job) { return ShownState(*FindPhase(job, KeepsState)); },
    .of_phases = true};

const Feature kAsymmetricGrowthState = {
    .name = "growth that keeps the state of old weights alone",
    .setting = "phases[].growth.optimizer_state asymmetric",
    .asked = [](const JobSpec& job) { return FindPhase(job, KeepsAsymmetricState) != nullptr; },
    .shown = [](const JobSpec& job) { return ShownState(*FindPhase(job, KeepsAsymmetricState)); },
    .of_phases = true};

}  // namespace weft::features
