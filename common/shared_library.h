#pragma once

#include <string>
#include <utility>

#include "common/status.h"

namespace weft {

/// Functions of a library that is looked for at run time: builds need none of its files, and
/// machines without it run all else. It stays loaded until the process ends. A value.
class SharedLibrary {
 public:
  /// Loads `file`, or the one that the environment variable `variable` names. kUnavailable, with
  /// what the loader says and "; hint: " and `hint`, where there is none.
  static Result<SharedLibrary> Load(const char* variable, const char* file, std::string hint);

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
  SharedLibrary(void* handle, std::string hint) : handle_(handle), hint_(std::move(hint)) {}

  Result<void*> Symbol(const char* name) const;

  void* handle_;
  std::string hint_;
};

}  // namespace weft
