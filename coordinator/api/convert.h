#pragma once

#include "coordinator/service/service.h"
#include "weft/v1/coordinator.pb.h"
#include "weft/v1/worker.pb.h"

namespace weft::coordinator {

// Between the records of the coordinator and the messages of the wire.

/// The message of a list's entry, without spec, attempts and summary.
v1::Job ToMessage(const JobSummary& job);
v1::Job ToMessage(const JobView& view);
v1::Worker ToMessage(const WorkerView& view);
v1::Queue ToMessage(const QueueUse& use);
v1::ExplainJobResponse ToMessage(const JobExplanation& explained);
v1::Checkpoint ToMessage(const CheckpointRecord& checkpoint);
v1::JobEvent ToMessage(const EventRecord& event);
v1::LogLine ToMessage(const LogRecord& line);
v1::StartAttempt ToMessage(const StartOrder& order);
v1::Membership ToMessage(const MembershipOrder& order);
v1::MeasureLink ToMessage(const LinkOrder& order);
v1::AttemptState ToMessage(PlacementEvent event);

std::optional<JobState> FromMessage(v1::JobState state);
std::optional<WorkerScheduling> FromMessage(v1::WorkerScheduling scheduling);
Reason FromMessage(v1::Reason reason);

/// kInvalid when a profile or progress is out of range.
Result<WorkerHello> FromMessage(const v1::Register& message);
Result<std::vector<RunningAttempt>> FromMessage(
    const google::protobuf::RepeatedPtrField<v1::RunningAttempt>& running);
Result<PlacementReport> FromMessage(const v1::AttemptReport& message);
LinkAnswer FromMessage(const v1::LinkReply& message);
HealthAnswer FromMessage(const v1::HealthReply& message);
LogAppend FromMessage(const v1::LogBatch& message);
CheckpointRecord FromMessage(const v1::Checkpoint& message);

}  // namespace weft::coordinator
