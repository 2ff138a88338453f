// Messages of the wire as the coordinator reads them, without a connection: the first line names
// the message, its bytes follow. What is accepted goes back to a message that is accepted.
#include <map>
#include <string>

#include "common/spec/check_links.h"
#include "common/spec/check_profile.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan_query.h"
#include "common/spec/spec_json.h"
#include "coordinator/api/convert.h"
#include "proto/convert.h"
#include "tests/fuzz/input.h"
#include "weft/v1/coordinator.pb.h"
#include "weft/v1/worker.pb.h"

namespace weft {
namespace {

/// A plain struct from its message, and back.
template <class Message, SpecStruct T>
std::optional<T> ReadBothWays(std::string_view bytes) {
  Message message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return std::nullopt;
  Result<T> read = FromProto<T>(message);
  if (!read.ok()) return std::nullopt;
  const Result<T> again = FromProto<T>(ToProto<Message>(*read));
  WEFT_FUZZ_EXPECT(again.ok());
  WEFT_FUZZ_EXPECT(ToJson(*again) == ToJson(*read));
  return *std::move(read);
}

void ReadWorkerMessage(std::string_view bytes) {
  v1::WorkerMessage message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  if (message.has_register_()) {
    const auto hello = coordinator::FromMessage(message.register_());
    if (hello.ok()) (void)CheckProfile(hello->profile);
  }
  (void)coordinator::FromMessage(message.heartbeat().running());
  (void)coordinator::FromMessage(message.attempt());
  (void)coordinator::FromMessage(message.logs());
  (void)coordinator::FromMessage(message.checkpoint().checkpoint());
  (void)coordinator::FromMessage(message.link());
}

void Read(std::string_view name, std::string_view bytes) {
  if (name == "JobSpec") {
    const auto job = ReadBothWays<v1::JobSpec, JobSpec>(bytes);
    if (job) (void)ValidateJob(*job);
  } else if (name == "ClusterProfile") {
    const auto cluster = ReadBothWays<v1::ClusterProfile, ClusterProfile>(bytes);
    if (!cluster) return;
    for (const WorkerProfile& worker : cluster->workers) (void)CheckProfile(worker);
    (void)CheckLinks(*cluster);
  } else if (name == "PlanQuery") {
    (void)ReadBothWays<v1::PlanQuery, PlanQuery>(bytes);
  } else {
    ReadWorkerMessage(bytes);
  }
}

}  // namespace
}  // namespace weft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes = weft::fuzz::Text(data, size);
  const std::string_view name = weft::fuzz::TakeUntil(bytes, '\n');
  weft::Read(name, bytes);
  return 0;
}
