#pragma once

#include <span>
#include <string>
#include <string_view>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Something that a job can ask for and that does not combine with everything else. Those of the
/// core are in features.h; a technique has its own (TechniqueCost::feature).
struct Feature {
  std::string_view name;     ///< The field's term: "pipeline parallelism".
  std::string_view setting;  ///< What a job writes: "resources.pipeline_parallel 2 or more".
  bool (*asked)(const JobSpec& job);
  /// The setting with the value of a job that asks for it: "resources.pipeline_parallel 4".
  std::string (*shown)(const JobSpec& job);
  /// The folder of model.import_path replaces values that it depends on. A job with an import_path
  /// does not ask for it.
  bool of_folder = false;
  /// It is read from `phases`, which the job of a single phase does not have: rows about it are
  /// asked of each phase (CheckPhaseCompatibility).
  bool of_phases = false;
};

/// A row of the table of features that no job can have together. Validation, the planner, the
/// engine, the equivalence matrix and docs/compatibility.md read it.
struct Refusal {
  const Feature* feature;
  const Feature* with;
  std::string_view because;  ///< A clause: "a pipeline has several micro-batches in flight".
  std::string_view hint;     ///< What to ask for instead.
};

// Texts of many rows.
inline constexpr std::string_view kOneOfTwo = "leave one of them out";
// Clauses that say what a technique would have to do.
inline constexpr std::string_view kOneProducts = "a layer has the products of one technique";
inline constexpr std::string_view kPlainPasses =
    "the check repeats passes without the technique's part of a step";
inline constexpr std::string_view kOtherBits =
    "the technique is not made to have the same bits on all meshes";
inline constexpr std::string_view kOnDeviceAlone =
    "the technique is made for weights that reside on the device";
inline constexpr std::string_view kDenseLayersAlone =
    "the technique is made for layers without experts";
inline constexpr std::string_view kAllBlocksHere =
    "the technique is made for ranks that have all blocks";
inline constexpr std::string_view kSummedEveryStep =
    "the technique is made for ranks that sum gradients in every step";
inline constexpr std::string_view kMadeOfOthers =
    "weights that are made of others would have to be made again in each pass";
inline constexpr std::string_view kBothSides =
    "its weights would have to be divided along both sides";

/// All rows: those of the core, then those of each technique (TechniqueCost::refusals). Those of a
/// feature follow one another.
std::span<const Refusal> Refusals();

/// Whether `job` asks for `feature`, as far as its model is known.
bool Asks(const JobSpec& job, const Feature& feature);

/// The first of `rows` whose features `job` both asks for; null: none.
const Refusal* FindRefusal(std::span<const Refusal> rows, const JobSpec& job);

/// "A does not go with B, because ...; hint: ...", with the values of `job`.
std::string RefusalText(const Refusal& row, const JobSpec& job);

/// kInvalid: the text of the first row that refuses `job`. What a job leaves to the planner
/// (open_choices.h) it does not ask for. Rows about a model that is imported hold once its folder
/// has been read and model.import_path is cleared (ValidateKnownSizes).
Status CheckCompatibility(const JobSpec& job);

}  // namespace weft
