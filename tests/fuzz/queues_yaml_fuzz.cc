// A coordinator's file of queues. What is read is written and read back to the same.
#include "common/spec/queue_spec.h"
#include "common/spec/spec_json.h"
#include "common/yaml.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace weft;
  const Result<Document> document = ParseYaml(fuzz::Text(data, size), "queues.yaml");
  if (!document.ok()) return 0;
  const Result<QueuesSpec> queues = FromJson<QueuesSpec>(*document);
  if (!queues.ok()) return 0;
  const Result<Document> again = ParseYaml(ToYaml(ToJson(*queues)), "again.yaml");
  WEFT_FUZZ_EXPECT(again.ok());
  const Result<QueuesSpec> same = FromJson<QueuesSpec>(*again);
  WEFT_FUZZ_EXPECT(same.ok());
  WEFT_FUZZ_EXPECT(ToJson(*same) == ToJson(*queues));
  WEFT_FUZZ_EXPECT(ValidateQueues(*same) == ValidateQueues(*queues));
  return 0;
}
