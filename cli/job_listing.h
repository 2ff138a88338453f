#pragma once

#include <string>
#include <vector>

#include "cli/command.h"

namespace weft::cli {

/// Jobs in rows; `single`: one that was asked for by name.
Listing JobListing(const std::vector<v1::Job>& jobs, bool single);

/// What became of a job that a command changed: "job tiny-abcde PAUSING", or the job.
void PrintChanged(const Session& session, const v1::Job& job);

/// Watches until the job has ended, drawing to stdout; its outcome.
ExitCode FollowJob(const Session& session, Client& client, const std::string& id);

/// Everything known of a job, in words; `wait`: lines on what it waits for.
ExitCode DescribeJob(const Session& session, const std::string& id, const std::string& wait);

}  // namespace weft::cli
