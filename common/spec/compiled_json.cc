#include "common/spec/cluster_spec.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "common/spec/spec_json.h"

namespace weft {

WEFT_FIELD_JSON(, bool);
WEFT_FIELD_JSON(, int64_t);
WEFT_FIELD_JSON(, double);
WEFT_FIELD_JSON(, std::string);
WEFT_FIELD_JSON(, std::vector<int64_t>);
WEFT_FIELD_JSON(, std::vector<double>);
WEFT_FIELD_JSON(, std::vector<std::string>);
WEFT_FIELD_JSON(, std::optional<bool>);
WEFT_FIELD_JSON(, std::optional<int64_t>);
WEFT_FIELD_JSON(, std::optional<double>);
WEFT_FIELD_JSON(, std::optional<std::string>);
WEFT_SPEC_JSON(, ModelSpec);
WEFT_SPEC_JSON(, TrainSpec);
WEFT_SPEC_JSON(, ResourceSpec);
WEFT_SPEC_JSON(, PhaseSpec);
WEFT_SPEC_JSON(, JobSpec);
WEFT_SPEC_JSON(, MemoryBreakdown);
WEFT_SPEC_JSON(, Plan);
WEFT_SPEC_JSON(, WorkerProfile);
WEFT_SPEC_JSON(, ClusterProfile);

}  // namespace weft
