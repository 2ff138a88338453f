#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/technique_cost.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

// Several adapters of the same frozen network that one job trains (model.peft.adapters).

inline bool HasJointAdapters(const PeftSpec& spec) {
  return !spec.adapters.empty();
}

// What is measured of each adapter, by its name.
inline constexpr std::string_view kAdapterLabel = "adapter";
inline constexpr std::string_view kAdapterLossMetric = "adapter_loss_nats";
inline constexpr std::string_view kAdapterGradientNormMetric = "adapter_gradient_norm";
inline constexpr std::string_view kAdapterValidationLossMetric = "adapter_eval_loss_nats";
std::vector<TechniqueMetric> JointAdapterMetrics();

/// The jobs that train each adapter by itself as this job trains it: its data and rate, its share
/// of the batch and of the sequences of an evaluation, which is rounded up.
std::vector<JobSpec> JointAdapterJobs(const JobSpec& job);

/// Their own files.
std::vector<DataList> JointAdapterData(JobSpec& job);

/// The name of a tensor of adapter `adapter` where there are several: "<layer>.lora_A.<adapter>
/// .weight", as peft has it in memory.
std::string JointTensorName(const std::string& name, const std::string& adapter);

/// What the same tensor is called in a job of its own, and in files of peft.
std::string OwnTensorName(const std::string& name, const std::string& adapter);

/// kInvalid where the adapters do not fit each other or the batch.
Status CheckJointAdapters(const JobSpec& job);

}  // namespace weft
