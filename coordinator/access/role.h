#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace weft::coordinator {

/// What a caller may do; each role may do what those before it may.
enum class Role {
  kNobody,    ///< Has shown nothing that is known.
  kViewer,    ///< Looks.
  kUser,      ///< Submits jobs and changes its own.
  kOperator,  ///< Changes all jobs, and workers.
  kAdmin,     ///< Reads the audit log, too.
};
inline constexpr std::array kRoles = {Role::kNobody, Role::kViewer, Role::kUser, Role::kOperator,
                                      Role::kAdmin};

constexpr std::string_view Name(Role role) {
  constexpr std::array<std::string_view, kRoles.size()> kNames = {"nobody", "viewer", "user",
                                                                  "operator", "admin"};
  return kNames[static_cast<size_t>(role)];
}

constexpr std::optional<Role> RoleFromName(std::string_view name) {
  for (const Role role : kRoles) {
    if (role != Role::kNobody && Name(role) == name) return role;
  }
  return std::nullopt;
}

/// A call of weft.v1.Coordinator, and who may make it.
struct Verb {
  std::string_view method;
  Role needs;        ///< On a job of the caller's own, and where a call is about no job.
  Role needs_other;  ///< On a job of another person.
  bool changes;      ///< Changes something: is recorded, and needs a deadline.
};

/// The one table of rights. A call that is not in it is nobody's.
inline constexpr std::array kVerbs = {
    Verb{"SubmitJob", Role::kUser, Role::kUser, true},
    Verb{"GetJob", Role::kViewer, Role::kViewer, false},
    Verb{"ListJobs", Role::kViewer, Role::kViewer, false},
    Verb{"CancelJob", Role::kUser, Role::kOperator, true},
    Verb{"RetryJob", Role::kUser, Role::kOperator, true},
    Verb{"PauseJob", Role::kUser, Role::kOperator, true},
    Verb{"ResumeJob", Role::kUser, Role::kOperator, true},
    Verb{"UpdateJob", Role::kUser, Role::kOperator, true},
    Verb{"ExplainJob", Role::kViewer, Role::kViewer, false},
    Verb{"ListQueues", Role::kViewer, Role::kViewer, false},
    Verb{"DeleteJob", Role::kUser, Role::kOperator, true},
    Verb{"WatchJob", Role::kViewer, Role::kViewer, false},
    Verb{"StreamLogs", Role::kViewer, Role::kViewer, false},
    Verb{"PlanJob", Role::kViewer, Role::kViewer, false},
    Verb{"ExplainPlan", Role::kViewer, Role::kViewer, false},
    Verb{"CalibratePlans", Role::kOperator, Role::kOperator, true},
    Verb{"ListWorkers", Role::kViewer, Role::kViewer, false},
    Verb{"ListEvents", Role::kViewer, Role::kViewer, false},
    Verb{"ForgetWorker", Role::kOperator, Role::kOperator, true},
    Verb{"SetWorkerScheduling", Role::kOperator, Role::kOperator, true},
    Verb{"ListAuditRecords", Role::kAdmin, Role::kAdmin, false},
    Verb{"WhoAmI", Role::kViewer, Role::kViewer, false},
    Verb{"ListCheckpoints", Role::kViewer, Role::kViewer, false},
    Verb{"ProfileJob", Role::kUser, Role::kOperator, true},
    Verb{"GetVersion", Role::kViewer, Role::kViewer, false},
};

/// The call of that name; null when there is none.
constexpr const Verb* FindVerb(std::string_view method) {
  for (const Verb& verb : kVerbs) {
    if (verb.method == method) return &verb;
  }
  return nullptr;
}

constexpr bool May(Role role, const Verb& verb, bool own) {
  return role >= (own ? verb.needs : verb.needs_other);
}

}  // namespace weft::coordinator
