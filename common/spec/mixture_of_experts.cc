#include "common/spec/mixture_of_experts.h"

#include <string>
#include <utility>

#include "common/glob.h"

namespace weft {

Status CheckExperts(const ModelSpec& model) {
  if (model.experts == 0) {
    for (const auto& [asked, field] :
         {std::pair{model.expert_capacity != 0, "model.expert_capacity"},
          {!model.normalize_expert_weights, "model.normalize_expert_weights false"}}) {
      if (asked) {
        return InvalidError(std::string(field) + " needs model.experts; hint: model.experts: 8");
      }
    }
    return OkStatus();
  }
  if (model.experts_per_token <= model.experts) return OkStatus();
  return InvalidError("model.experts_per_token " + std::to_string(model.experts_per_token) +
                      " is more than model.experts " + std::to_string(model.experts));
}

std::string RouterWarning(const ModelSpec& model) {
  if (model.experts < 2 || model.experts_per_token > 1 || !model.normalize_expert_weights) {
    return "";
  }
  return std::string(
             "model.experts_per_token 1: the weight of a token's one expert is 1, whatever "
             "its probability, so the router learns from ") +
         (RouterAuxLossOf(model) > 0 ? "the balancing loss alone" : "nothing") +
         "; hint: model.normalize_expert_weights: false weighs the expert by its probability";
}

std::string UnevenExperts(const ModelSpec& model,
                          const std::function<bool(const std::string& parameter)>& names) {
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    for (const char* matrix : {".w1.weight", ".w2.weight", ".w3.weight"}) {
      const auto name = [&](int64_t expert) {
        return "model.layers." + std::to_string(layer) + ".block_sparse_moe.experts." +
               std::to_string(expert) + matrix;
      };
      const bool first = names(name(0));
      for (int64_t expert = 1; expert < model.experts; ++expert) {
        if (names(name(expert)) == first) continue;
        return name(first ? 0 : expert) + " and not " + name(first ? expert : 0);
      }
    }
  }
  return "";
}

std::string UnevenFreeze(const ModelSpec& model) {
  if (model.freeze.empty()) return "";
  return UnevenExperts(
      model, [&](const std::string& parameter) { return MatchesAny(model.freeze, parameter); });
}

Status CheckExpertParallel(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  const int64_t degree = resources.expert_parallel;
  if (degree == 1) return OkStatus();
  const std::string field = "resources.expert_parallel " + std::to_string(degree);
  if (job.model.experts == 0) {
    return InvalidError(field +
                        " partitions the experts of model.experts, and the model has none; hint: "
                        "1, which leaves the ranks data-parallel");
  }
  if (job.model.experts % degree != 0) {
    return InvalidError(field + " must divide model.experts " + std::to_string(job.model.experts));
  }
  const int64_t stages = resources.pipeline_parallel, matrices = resources.tensor_parallel;
  const int64_t context_ranks = resources.context_parallel;
  if (resources.ranks % (stages * matrices * context_ranks * degree) != 0) {
    const auto per = [&](const char* name, int64_t ranks) {
      return ranks > 1 ? " / resources." + std::string(name) + " " + std::to_string(ranks)
                       : std::string();
    };
    return InvalidError(field + " must divide resources.ranks " + std::to_string(resources.ranks) +
                        per("pipeline_parallel", stages) + per("tensor_parallel", matrices) +
                        per("context_parallel", context_ranks) +
                        ": expert-parallel ranks are data-parallel ranks");
  }
  const bool grows = job.train.batch_warmup_steps > 0;
  const int64_t batch = grows ? job.train.batch_warmup_start : job.train.global_batch;
  if (batch % degree != 0) {
    return InvalidError(
        field + " must divide " + (grows ? "train.batch_warmup_start " : "train.global_batch ") +
        std::to_string(batch) + ": each of these ranks trains on as many sequences");
  }
  // Context-parallel ranks are between them.
  if (const int64_t sequences = resources.context_parallel;
      resources.zero_shard_ranks % (degree * sequences) != 0) {
    return InvalidError(
        field + (sequences > 1 ? " x context_parallel " + std::to_string(sequences) : "") +
        " must divide resources.zero_shard_ranks " + std::to_string(resources.zero_shard_ranks) +
        ": expert-parallel ranks are in one of these groups");
  }
  return OkStatus();
}

Status CheckMixtureOfExperts(const JobSpec& job) {
  const bool known = job.model.import_path.empty() || job.model.experts > 0;
  return known ? CheckExpertParallel(job) : OkStatus();
}

}  // namespace weft
