// A job in JSON, as the store and the engine read it: what is valid is written and read back to the
// same.
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const Result<Json> json = ParseJson(fuzz::Text(data, size));
  if (!json.ok()) return 0;
  const Result<JobSpec> job = FromJson<JobSpec>(*json);
  if (!job.ok()) return 0;
  (void)ValidateJob(*job);
  const Json written = ToJson(*job);
  const Result<JobSpec> again = FromJson<JobSpec>(written);
  WEFT_FUZZ_EXPECT(again.ok());
  WEFT_FUZZ_EXPECT(ToJson(*again) == written);
  return 0;
}
