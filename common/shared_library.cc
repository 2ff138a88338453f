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

Result<void*> Open(const char* file, const std::string& hint) {
  void* const handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return Missing(std::string("loading ") + file, hint);
  return handle;
}

/// A library that nobody closes.
std::shared_ptr<void> Kept(void* handle) {
  return {handle, [](void*) {}};
}

}  // namespace

Result<SharedLibrary> SharedLibrary::Load(const char* variable, const char* file,
                                          std::string hint) {
  if (const char* named = std::getenv(variable); named != nullptr) file = named;
  WEFT_ASSIGN_OR_RETURN(void* const handle, Open(file, hint));
  return SharedLibrary(Kept(handle), std::move(hint));
}

Result<SharedLibrary> SharedLibrary::LoadWhileUsed(const char* file, std::string hint) {
  WEFT_ASSIGN_OR_RETURN(void* const handle, Open(file, hint));
  return SharedLibrary(std::shared_ptr<void>(handle, [](void* each) { (void)dlclose(each); }),
                       std::move(hint));
}

SharedLibrary SharedLibrary::OfProcess(std::string hint) {
  return {Kept(RTLD_DEFAULT), std::move(hint)};
}

Result<void*> SharedLibrary::Symbol(const char* name) const {
  void* const symbol = dlsym(handle_.get(), name);
  if (symbol == nullptr) return Missing(std::string("looking for ") + name, hint_);
  return symbol;
}

}  // namespace weft
