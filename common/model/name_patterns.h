#pragma once

#include <string>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"

// Fields that name parameters by patterns (common/glob.h). All functions are pure.
namespace weft {

/// kInvalid where one of `patterns` matches none of `names`, with a near name or some that there
/// are. `field` is what has the patterns, as in "model.freeze"; `what` is what has the names.
Status CheckPatterns(const std::string& field, const std::vector<std::string>& patterns,
                     const std::vector<std::string>& names, const std::string& what = "parameter");

/// kInvalid: model.freeze matches every parameter.
Status NothingToTrainError();

/// The names that model.freeze may match, in the order of the forward pass: those of all parameters
/// and of the weights that some are in place of. `model` with vocab_size resolved.
std::vector<std::string> ParameterNames(const ModelSpec& model);

/// The names that optimizer.groups may match: those, and of sources (TechniqueCost::SourcesOf).
std::vector<std::string> GroupedNames(const ModelSpec& model);

/// CheckPatterns of model.freeze, which must leave something to train, and of optimizer.groups. Of
/// a job whose techniques are valid. Where model.import_path has not been read, so that the names
/// are not known, nothing is refused.
Status CheckParameterPatterns(const JobSpec& job);

/// CheckPatterns of a field that names matrices of blocks, as files have them; `trained`: those
/// alone that are. Likewise nothing is refused with a model.import_path.
Status CheckMatrixPatterns(const std::string& field, const std::vector<std::string>& patterns,
                           const ModelSpec& model, bool trained);

}  // namespace weft
