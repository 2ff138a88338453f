#include "common/shared_library.h"

#include <dlfcn.h>

#include <cstdlib>

namespace weft {
namespace {

Status Missing(const std::string& what, const std::string& hint) {
  const char* reason = dlerror();
  return UnavailableError(what + (reason != nullptr ? std::string(": ") + reason : "") +
                          "; hint: " + hint);
}

}  // namespace

Result<SharedLibrary> SharedLibrary::Load(const char* variable, const char* file,
                                          std::string hint) {
  if (const char* named = std::getenv(variable); named != nullptr) file = named;
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Missing(std::string("loading ") + file, hint);
  return SharedLibrary(handle, std::move(hint));
}

SharedLibrary SharedLibrary::OfProcess(std::string hint) {
  return {RTLD_DEFAULT, std::move(hint)};
}

Result<void*> SharedLibrary::Symbol(const char* name) const {
  void* const symbol = dlsym(handle_, name);
  if (symbol == nullptr) return Missing(std::string("looking for ") + name, hint_);
  return symbol;
}

}  // namespace weft
