#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// DataSpec::format of the job; "auto" resolved by the first training file, with "text" for all
/// forms of text, which is recognised for each file (RecognizeText). kInvalid when a file of tokens
/// does not show what it is.
Result<std::string> DataFormatOf(Env& env, const JobSpec& job);

/// `paths` with the files of each folder, sorted by name, in its place. Hidden files are left out.
/// kInvalid: a folder that is empty or holds folders.
Result<std::vector<std::string>> FilesOf(Env& env, const std::vector<std::string>& paths);

/// Whether data of this format (data.format, not auto) can train a model of this family. kInvalid
/// says why not.
Status CheckFormatServes(const std::string& format, const std::string& family);

/// How much CheckDataFiles reads.
struct DataCheckLimits {
  uint64_t bytes_per_file = uint64_t{1} << 20;
  uint64_t bytes = uint64_t{32} << 20;  ///< Of all files together.
  bool missing_is_error = true;         ///< Otherwise the workers look for it.
};

/// Looks for mistakes in the files of a job that can be seen in their beginnings: missing files,
/// forms in doubt, lines that cannot be used (unless data.bad_lines is skip), files of tokens that
/// are none, IDX files without their labels, folders without images, a chat template that cannot be
/// parsed. kInvalid names the field, the file and the line.
Status CheckDataFiles(Env& env, const JobSpec& job, const DataCheckLimits& limits);

}  // namespace weft
