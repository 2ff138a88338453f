#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/status.h"

namespace weft {

/// Functions of a library that is looked for at run time: builds need none of its files, and
/// machines without it run all else. A value.
class SharedLibrary {
 public:
  /// Loads `file`, or the one that the environment variable `variable` names, until the process
  /// ends. kUnavailable, with what the loader says and "; hint: " and `hint`, where there is none.
  static Result<SharedLibrary> Load(const char* variable, const char* file, std::string hint);

  /// Loads `file` until the last copy of the value is gone, after which none of its functions may
  /// be called: who loads it then gets what has been installed meanwhile. Errors as Load has them.
  static Result<SharedLibrary> LoadWhileUsed(const char* file, std::string hint);

  /// The functions that this process has already.
  static SharedLibrary OfProcess(std::string hint);

  /// Sets `function` to that of this name; kUnavailable where there is none.
  template <class Function>
  Status Find(const char* name, Function& function) const {
    WEFT_ASSIGN_OR_RETURN(void* const symbol, Symbol(name));
    function = reinterpret_cast<Function>(symbol);
    return OkStatus();
  }

 private:
  SharedLibrary(std::shared_ptr<void> handle, std::string hint)
      : handle_(std::move(handle)), hint_(std::move(hint)) {}

  Result<void*> Symbol(const char* name) const;

  std::shared_ptr<void> handle_;
  std::string hint_;
};

}  // namespace weft
