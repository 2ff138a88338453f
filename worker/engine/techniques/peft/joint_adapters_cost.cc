#include "worker/engine/techniques/peft/joint_adapters_cost.h"

#include <algorithm>
#include <set>

#include "common/model/parameter_name.h"

namespace weft {
namespace {

Status CheckNames(const std::vector<AdapterSpec>& adapters) {
  std::set<std::string_view> names;
  for (const AdapterSpec& adapter : adapters) {
    const bool plain = std::all_of(adapter.name.begin(), adapter.name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
    });
    if (!plain) {
      return InvalidError("model.peft.adapters has the name '" + adapter.name +
                          "'; hint: lower-case letters, digits and dashes");
    }
    if (!names.insert(adapter.name).second) {
      return InvalidError("model.peft.adapters has the name '" + adapter.name +
                          "' twice; hint: a name for each");
    }
  }
  return OkStatus();
}

/// The batch and each micro-batch of a rank has as many sequences of each adapter.
Status CheckBatch(const JobSpec& job) {
  const auto adapters = std::ssize(job.model.peft.adapters);
  const ResourceSpec& resources = job.resources;
  const std::string of = " of " + std::to_string(adapters) + " adapters (model.peft.adapters)";
  if (resources.micro_batch % adapters != 0) {
    return InvalidError("resources.micro_batch " + std::to_string(resources.micro_batch) +
                        " has not as many sequences of each" + of + "; hint: a multiple of " +
                        std::to_string(adapters));
  }
  const bool own_rates =
      std::any_of(job.model.peft.adapters.begin(), job.model.peft.adapters.end(),
                  [](const AdapterSpec& adapter) { return adapter.learning_rate > 0; });
  if (own_rates && job.optimizer.learning_rate == 0) {
    return InvalidError(
        "model.peft.adapters has rates of their own, and optimizer.learning_rate is 0; hint: the "
        "largest of them");
  }
  // Those that train on sequences of their own, where their number is known.
  const int64_t replica =
      resources.tensor_parallel * resources.pipeline_parallel * resources.context_parallel;
  const int64_t ranks = std::max<int64_t>(resources.ranks / replica, 1);
  const int64_t each = ranks * adapters;
  if (job.train.global_batch % each == 0) return OkStatus();
  return InvalidError(
      "train.global_batch " + std::to_string(job.train.global_batch) +
      " has not as many sequences of each" + of +
      (ranks > 1 ? " on each of " + std::to_string(ranks) + " data-parallel ranks" : "") +
      "; hint: " + std::to_string((job.train.global_batch / each + 1) * each));
}

}  // namespace

std::vector<TechniqueMetric> JointAdapterMetrics() {
  return {
      {kAdapterLossMetric,
       "Mean cross-entropy of each of model.peft.adapters over its own targets, in nats per "
       "token.",
       kAdapterLabel},
      {kAdapterGradientNormMetric,
       "Norm of the gradient of each of model.peft.adapters, before its clipping.", kAdapterLabel},
      {kAdapterValidationLossMetric,
       "Newest validation loss of each of model.peft.adapters, in nats per token.", kAdapterLabel}};
}

std::vector<JobSpec> JointAdapterJobs(const JobSpec& job) {
  const std::vector<AdapterSpec>& adapters = job.model.peft.adapters;
  const auto count = std::ssize(adapters);
  std::vector<JobSpec> jobs;
  for (const AdapterSpec& adapter : adapters) {
    JobSpec& own = jobs.emplace_back(job);
    own.name = adapter.name;
    own.model.peft.adapters.clear();
    own.train.global_batch /= count;
    own.train.eval_sequences = (own.train.eval_sequences + count - 1) / count;
    own.resources.micro_batch /= count;
    if (!adapter.train.empty()) {
      own.data.train = adapter.train;
      own.data.validation.clear();
    }
    if (!adapter.validation.empty()) own.data.validation = adapter.validation;
    if (adapter.learning_rate > 0) own.optimizer.learning_rate = adapter.learning_rate;
  }
  return jobs;
}

std::vector<DataList> JointAdapterData(JobSpec& job) {
  std::vector<DataList> lists;
  std::vector<AdapterSpec>& adapters = job.model.peft.adapters;
  for (size_t i = 0; i < adapters.size(); ++i) {
    const std::string field = "model.peft.adapters[" + std::to_string(i) + "].";
    lists.push_back({field + "train", &adapters[i].train});
    lists.push_back({field + "validation", &adapters[i].validation});
  }
  return lists;
}

std::string JointTensorName(const std::string& name, const std::string& adapter) {
  return LayerOf(name) + "." + adapter + ".weight";
}

std::string OwnTensorName(const std::string& name, const std::string& adapter) {
  const std::string layer = LayerOf(name);
  return layer.substr(0, layer.size() - adapter.size() - 1) + ".weight";
}

Status CheckJointAdapters(const JobSpec& job) {
  const PeftSpec& spec = job.model.peft;
  if (spec.adapters.empty()) return OkStatus();
  if (spec.adapters.size() == 1) {
    return InvalidError(
        "model.peft.adapters has one adapter; hint: leave it out, with its files in data.train "
        "and its rate in optimizer.learning_rate");
  }
  WEFT_RETURN_IF_ERROR(CheckNames(spec.adapters));
  // A network by itself has no batch.
  return job.data.train.empty() ? OkStatus() : CheckBatch(job);
}

}  // namespace weft
