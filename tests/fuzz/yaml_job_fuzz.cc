// A job file as people write it. YAML that is read is written and read back to the same.
#include "common/spec/job_spec.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const Result<Document> document = ParseYaml(fuzz::Text(data, size), "job.yaml");
  if (!document.ok()) return 0;
  const Result<Document> again = ParseYaml(ToYaml(document->value), "again.yaml");
  WEFT_FUZZ_EXPECT(again.ok());
  WEFT_FUZZ_EXPECT(again->value == document->value);
  const Result<JobSpec> job = FromJson<JobSpec>(*document);
  if (job.ok()) (void)ValidateJob(*job);
  return 0;
}
