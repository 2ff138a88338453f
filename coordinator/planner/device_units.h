#pragma once

#include <cstdint>
#include <vector>

#include "common/spec/job_spec.h"

namespace weft::planner {

/// The sets of units among which is the best one to keep on the device where the optimizer is on
/// the host (ResourceSpec::device_updated_units), whatever the device has room for; the last one is
/// empty, and none has all units.
///
/// Units differ in what they take and in what they spare the link. Of blocks that are alike the
/// first ones are kept: a later one in the place of an earlier one would take as much and spare as
/// many bytes, but its gradients are on their way sooner and its weights wanted later, so that more
/// of these ways hides behind the passes. So a set is the embeddings or not, the head or not, and a
/// number of blocks of each kind. Units without trained parameters send nothing and are not kept.
///
/// Where the kinds of blocks would make more than a few thousand sets, kinds are not
/// distinguished. `model` with vocab_size resolved.
std::vector<std::vector<int64_t>> DeviceUnitSets(const ModelSpec& model);

/// The same of units whose weights come once a step where those of others come block by block
/// (ResourceSpec::resident_units): blocks as far apart as there is room, so that between two that
/// come in every pass there are about as many that do not, while the next one comes. The
/// last block, which stays between the passes anyway, is the last one to be chosen.
std::vector<std::vector<int64_t>> ResidentUnitSets(const ModelSpec& model);

/// `choices`, and in the place of each whose offload_optimizer or offload_parameters is part one of
/// every such set; none twice.
std::vector<JobSpec> WithUnits(std::vector<JobSpec> choices);

}  // namespace weft::planner
