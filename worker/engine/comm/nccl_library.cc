#include "worker/engine/comm/nccl_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace weft::engine {
namespace {

Status Missing(const std::string& what) {
  const char* reason = dlerror();
  return UnavailableError(
      what + (reason != nullptr ? std::string(": ") + reason : "") +
      "; hint: NCCL 2.18 or later comes with CUDA and with pip's nvidia-nccl; WEFT_NCCL_LIBRARY "
      "names its file where the loader does not find it");
}

template <class Function>
Status Find(void* library, const char* name, Function& function) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) return Missing(std::string("looking for ") + name);
  function = reinterpret_cast<Function>(symbol);
  return OkStatus();
}

Result<const NcclLibrary*> Load() {
  // Otherwise NCCL registers buffers of recorded operations and may reduce them in another way:
  // steps as graphs would differ in bits from those before them.
  (void)setenv("NCCL_GRAPH_REGISTER", "0", 0);
  const char* named = std::getenv("WEFT_NCCL_LIBRARY");
  const char* file = named != nullptr ? named : "libnccl.so.2";
  void* const nccl = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (nccl == nullptr) return Missing(std::string("loading ") + file);
  static NcclLibrary library;
  NcclLibrary& l = library;
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclGetUniqueId", l.get_unique_id));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclCommInitRankConfig", l.comm_init_rank_config));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclCommSplit", l.comm_split));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclCommGetAsyncError", l.comm_get_async_error));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclCommFinalize", l.comm_finalize));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclCommDestroy", l.comm_destroy));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclCommAbort", l.comm_abort));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclGetErrorString", l.get_error_string));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclAllReduce", l.all_reduce));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclReduceScatter", l.reduce_scatter));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclAllGather", l.all_gather));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclBroadcast", l.broadcast));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclSend", l.send));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclRecv", l.receive));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclGroupStart", l.group_start));
  WEFT_RETURN_IF_ERROR(Find(nccl, "ncclGroupEnd", l.group_end));
  // The runtime that this process has: streams are its own.
  void* const cuda = RTLD_DEFAULT;
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaSetDevice", l.set_device));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaDeviceGetPCIBusId", l.device_bus_id));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaStreamCreateWithFlags", l.stream_create));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaStreamDestroy", l.stream_destroy));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaStreamWaitEvent", l.stream_wait_event));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaEventCreateWithFlags", l.event_create));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaEventDestroy", l.event_destroy));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaEventRecordWithFlags", l.event_record));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaEventQuery", l.event_query));
  WEFT_RETURN_IF_ERROR(Find(cuda, "cudaEventElapsedTime", l.event_elapsed));
  return &std::as_const(library);
}

}  // namespace

Result<const NcclLibrary*> LoadNccl() {
  static const Result<const NcclLibrary*> loaded = Load();
  return loaded;
}

}  // namespace weft::engine
