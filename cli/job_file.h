#pragma once

#include <functional>
#include <iostream>
#include <string>

#include "common/json.h"
#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft::cli {

/// Which of a job's files are looked at, in their beginnings, for mistakes.
enum class DataCheck {
  kNone,     ///< The job is planned only.
  kPresent,  ///< Those that are here: it runs elsewhere.
  kAll,      ///< It runs here, so a missing file is a mistake.
};

/// Reads a job file (YAML or JSON; "-" is standard input) and checks it whole. Paths in it are
/// those of ResolvePath and ExpandPath, relative ones taken from the file's folder (from the
/// current one for standard input). Errors name file, line and field. What is changed without being
/// an error is said in `notes`. `edit` changes what was read before it is taken for a job.
Result<JobSpec> LoadJobFile(const std::string& path, DataCheck check = DataCheck::kNone,
                            std::ostream& notes = std::cerr,
                            const std::function<Status(Json&)>& edit = nullptr);

/// An error that names fields of a document ("model.width 100 must ..."), with the file and the
/// line of the first of them that is there.
Status WithLineOfField(const Document& document, const Status& status);

}  // namespace weft::cli
