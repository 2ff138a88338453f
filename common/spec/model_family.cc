#include "common/spec/model_family.h"

#include "common/spec/compatibility.h"
#include "common/spec/job_spec.h"

namespace weft {

Status CheckFamily(const ModelSpec& model) {
  JobSpec job;
  job.model = model;
  job.model.import_path.clear();  // its family is known
  return CheckCompatibility(job);
}

}  // namespace weft
