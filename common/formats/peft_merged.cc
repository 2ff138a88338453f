#include "common/formats/peft_merged.h"

#include <algorithm>
#include <iterator>

#include "common/formats/peft_config.h"
#include "common/formats/peft_fields.h"
#include "common/model/parameter_list.h"
#include "common/model/parameter_name.h"

namespace weft {
namespace {

/// Terms of the series that peft takes for a rotation, which is what oft computes.
constexpr int64_t kNeumannTerms = 5;
/// The first version of peft with this series; it warns of older ones, and of none.
constexpr char kRotationVersion[] = "0.18.0";

/// Reads a whole number from `least` to `most`.
Result<int64_t> WholeNumber(const Json& config, const char* key, int64_t otherwise, int64_t least,
                            int64_t most) {
  const Json value = config.value(key, Json(otherwise));
  if (value.is_number_integer() && value >= least && value <= most) return value.get<int64_t>();
  return InvalidError(HasField(key, value) + ", which is no whole number from " +
                      std::to_string(least) + " to " + std::to_string(most));
}

/// loha and lokr.
Status ReadLycoris(const Json& config, PeftSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(spec.rank, RankFrom("r", config.value("r", Json(8))));
  WEFT_ASSIGN_OR_RETURN(spec.alpha, AlphaFrom("alpha", config.value("alpha", Json(8))));
  WEFT_RETURN_IF_ERROR(ReadPatterns(config, "rank_pattern", RankFrom, spec.rank_pattern));
  WEFT_RETURN_IF_ERROR(ReadPatterns(config, "alpha_pattern", AlphaFrom, spec.alpha_pattern));
  if (spec.method == "loha") return OkStatus();
  WEFT_RETURN_IF_ERROR(ReadFlag(config, "decompose_both", spec.decompose_both));
  WEFT_ASSIGN_OR_RETURN(spec.decompose_factor,
                        WholeNumber(config, "decompose_factor", -1, -1, 1 << 17));
  // Versions of peft without this field do not scale a lokr.
  if (config.contains("rank_dropout_scale")) return OkStatus();
  spec.alpha = static_cast<double>(spec.rank);
  spec.alpha_pattern.clear();
  for (const auto& [pattern, rank] : spec.rank_pattern) {
    spec.alpha_pattern[pattern] = static_cast<double>(rank);
  }
  return OkStatus();
}

/// The side of blocks from their number, which must be the same for all layers.
Status ReadBlocks(const Json& config, const ModelSpec& model, const std::set<std::string>& layers,
                  PeftSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(const int64_t blocks, WholeNumber(config, "r", 0, 1, 4096));
  std::set<int64_t> inputs;
  for (const ParameterInfo& weight : PlainParametersOf(model)) {
    if (!weight.matrix() || !layers.contains(LayerOf(weight.name))) continue;
    inputs.insert(weight.shape.back());
  }
  if (inputs.empty()) return OkStatus();  // the tensors are of no layer, which is refused
  const int64_t width = *inputs.begin();
  if (inputs.size() > 1 || width % blocks != 0 || width / blocks < 2) {
    return InvalidError(HasField("r", blocks) +
                        ", blocks of each layer, which are not of one whole size from 2 up here; "
                        "hint: oft_block_size in place of r");
  }
  spec.oft_block_size = width / blocks;
  return OkStatus();
}

// Folders without use_cayley_neumann are of versions that computed the rotation exactly.
Status ReadOft(const Json& config, const ModelSpec& model, const std::set<std::string>& layers,
               PeftSpec& spec) {
  const Json blocks = config.value("r", Json(0));
  if (blocks != 0 && config.value("oft_block_size", Json()) == 0) {
    WEFT_RETURN_IF_ERROR(ReadBlocks(config, model, layers, spec));
  } else {
    if (blocks != 0) return NotComputed("r", blocks);
    WEFT_ASSIGN_OR_RETURN(spec.oft_block_size, WholeNumber(config, "oft_block_size", 32, 2, 4096));
  }
  const Json series = config.value("use_cayley_neumann", Json(false));
  if (series != true) return NotComputed("use_cayley_neumann", series);
  const Json terms = config.value("num_cayley_neumann_terms", Json(kNeumannTerms));
  return terms == kNeumannTerms ? OkStatus() : NotComputed("num_cayley_neumann_terms", terms);
}

Status ReadVera(const Json& config, PeftSpec& spec) {
  WEFT_ASSIGN_OR_RETURN(spec.rank, RankFrom("r", config.value("r", Json(256))));
  const Json initial = config.value("d_initial", Json(0.1));
  if (!initial.is_number() || initial < -10 || initial > 10) {
    return InvalidError(HasField("d_initial", initial) + ", which is no number from -10 to 10");
  }
  spec.d_initial = initial.get<double>();
  const Json saved = config.value("save_projection", Json(true));
  if (saved == true) return OkStatus();
  return InvalidError(HasField("save_projection", saved) +
                      ", so the folder does not have its random factors, which another generator "
                      "does not draw again; hint: save it with save_projection true");
}

void AddPatterns(const PeftSpec& spec, Json& config) {
  config["rank_pattern"] = Json::object();
  for (const auto& [pattern, rank] : spec.rank_pattern) config["rank_pattern"][pattern] = rank;
  config["alpha_pattern"] = Json::object();
  for (const auto& [pattern, alpha] : spec.alpha_pattern) config["alpha_pattern"][pattern] = alpha;
}

}  // namespace

bool IsMergedMethod(const std::string& method) {
  static constexpr const char* kMethods[] = {"loha", "lokr", "oft", "vera"};
  return std::find(std::begin(kMethods), std::end(kMethods), method) != std::end(kMethods);
}

Status ReadMerged(const Json& config, const ModelSpec& model, const std::set<std::string>& layers,
                  PeftSpec& spec) {
  if (spec.method == "oft") return ReadOft(config, model, layers, spec);
  return spec.method == "vera" ? ReadVera(config, spec) : ReadLycoris(config, spec);
}

Status AddMerged(const ModelSpec& model, Json& config) {
  const PeftSpec& spec = model.peft;
  config["init_weights"] = true;
  if (spec.method == "vera") {
    config["peft_type"] = "VERA";
    config["r"] = spec.rank;
    config["d_initial"] = spec.d_initial;
    config["vera_dropout"] = 0.0;
    config["save_projection"] = true;
    config["projection_prng_key"] = 0;
    return OkStatus();
  }
  if (model.family == "gpt2") return NotOfConv1D(spec.method);
  config["module_dropout"] = 0.0;
  if (spec.method == "oft") {
    config["peft_type"] = "OFT";
    config["r"] = 0;
    config["oft_block_size"] = spec.oft_block_size;
    config["coft"] = false;
    config["block_share"] = false;
    config["use_cayley_neumann"] = true;
    config["num_cayley_neumann_terms"] = kNeumannTerms;
    config["peft_version"] = kRotationVersion;
    return OkStatus();
  }
  config["peft_type"] = spec.method == "loha" ? "LOHA" : "LOKR";
  config["r"] = spec.rank;
  config["alpha"] = spec.alpha;
  config["rank_dropout"] = 0.0;
  config["use_effective_conv2d"] = false;
  AddPatterns(spec, config);
  if (spec.method == "loha") return OkStatus();
  config["decompose_both"] = spec.decompose_both;
  config["decompose_factor"] = spec.decompose_factor;
  config["rank_dropout_scale"] = false;
  return OkStatus();
}

}  // namespace weft
